"""What this project computes once where TRL and vLLM do it twice: the numbers must be the same."""

import inspect
import math
from types import SimpleNamespace

import pytest
import torch
from trl import GRPOTrainer
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.outputs import LogprobsLists

from tests.real_runs import CASES, SHORT, launch
from training.score_in_loss import importance_ratio

# of two sequences: trainer and engine differ by log 2 in one token each, the third token of the second does not count
SCORED = torch.tensor([[0.0, math.log(2.0), 0.0], [-math.log(2.0), 0.0, 9.0]])
SAMPLED = torch.tensor([[0.0, 0.0, math.nan], [0.0, 0.0, 0.0]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])


@pytest.mark.parametrize(
    ("mode", "least", "most", "expected"),
    [
        ("sequence_mask", None, 3.0, [[2.0], [0.5]]),
        ("sequence_mask", None, 1.5, [[0.0], [0.5]]),
        ("sequence_truncate", 0.75, 1.5, [[1.5], [0.75]]),
        ("token_mask", 0.75, None, [[1.0, 2.0, 1.0], [0.0, 1.0, 1.0]]),
        ("token_truncate", None, 1.5, [[1.0, 1.5, 1.0], [0.5, 1.0, 1.0]]),
    ],
)
def test_the_importance_ratio_is_trls(mode, least, most, expected):
    trainer = SimpleNamespace(
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=least,
        vllm_importance_sampling_clip_max=most,
    )
    torch.testing.assert_close(importance_ratio(trainer, SCORED, SAMPLED, MASK), torch.tensor(expected))


def test_trl_reads_the_ratio_after_the_forward_pass():
    source = inspect.getsource(GRPOTrainer._compute_loss)
    assert source.index("self._get_per_token_logps_and_entropies(") < source.index(
        'inputs["importance_sampling_ratio"]'
    )
    assert 'inputs.get("old_per_token_logps")' in source
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    assert "self.use_vllm and self.vllm_importance_sampling_correction" in source


def test_vllm_hands_its_outputs_to_the_processor_that_is_wrapped():
    assert "self.output_processor.process_outputs(" in inspect.getsource(LLMEngine.step)
    assert "req_state.logprobs_processor.update_from_output(" in inspect.getsource(OutputProcessor.process_outputs)
    assert {"new_token_ids", "new_logprobs", "events", "prefill_stats", "finish_reason"} <= set(
        EngineCoreOutput.__struct_fields__
    )
    assert LogprobsLists._fields[:3] == ("logprob_token_ids", "logprobs", "sampled_token_ranks")


@pytest.mark.slow
def test_a_run_with_speedups_computes_what_a_run_without_does(outcomes, tmp_path):
    """Float32 on CPUs: the same samples, and losses and gradients to the rounding of another order of summation."""
    recipe, overrides = CASES["two ranks"]
    on = ["speedups.score_in_loss=true", "speedups.outputs_when_finished=true"]
    fast = launch(recipe, tmp_path, [*SHORT, *overrides, *on], WANDB_API_KEY="")
    assert fast.code == 0, fast.output
    plain, quick = outcomes("two ranks").run.train_steps(), fast.run.train_steps()
    assert len(plain) == len(quick) == 3
    for a, b in zip(plain, quick, strict=True):
        assert a["prompts_sha256"] == b["prompts_sha256"] and a["reward"] == b["reward"]
        for name in ("loss", "grad_norm", "sampling/importance_sampling_ratio/mean", "completions/mean_length"):
            assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6), name
        assert b["sampling/sampling_logp_difference/mean"] > 0
