"""The engine's outputs, processed once a completion instead of once a token. Part of the seam to vLLM (training/engine.py).

A trainer needs token ids and their log-probabilities when a completion has ended. vLLM prepares for a reader who follows the
text as it grows: for every token of every request it detokenizes, and builds a dictionary with an object in it for the
log-probability (vllm/v1/engine/output_processor.py and logprobs.py, 0.25.1 and 0.31.0). With 128 requests that is more work for
the host than the GPU has in the same time. Here the parts of a request are kept as they come and go through vLLM's own
processing together, when the last has come. Ids and log-probabilities are the same numbers.
"""

import math

import numpy as np
from vllm.logprobs import FlatLogprobs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.detokenizer import IncrementalDetokenizer


def only_tokens(sampling_params) -> None:
    """Asks for no text and for vLLM's flat form of log-probabilities: lists of numbers, no object a token."""
    sampling_params.detokenize = False
    sampling_params.flat_logprobs = True


def process_when_finished(processor) -> None:
    """Makes an engine's OutputProcessor take each request's outputs at once, when it has finished.

    Requests that somebody reads while they grow, or whose text decides where they end, are processed as before.
    """
    process, waiting = processor.process_outputs, {}

    def process_outputs(outputs, *args, **kwargs):
        ready = []
        for output in outputs:
            parts = waiting.get(output.request_id)
            if parts is None:
                if not _can_wait(processor.request_states.get(output.request_id)):
                    ready.append(output)
                    continue
                parts = waiting[output.request_id] = []
            parts.append(output)
            if output.finish_reason is not None:
                del waiting[output.request_id]
                ready.append(_joined(parts, processor.request_states.get(output.request_id)))
        result = process(ready, *args, **kwargs)
        if not processor.request_states:
            waiting.clear()  # of requests that were aborted
        return result

    processor.process_outputs = process_outputs


def _can_wait(state) -> bool:
    return (
        state is not None
        and state.output_kind == RequestOutputKind.FINAL_ONLY
        and type(state.detokenizer) is IncrementalDetokenizer  # the one that writes no text
    )


def _joined(parts: list, state):
    """One EngineCoreOutput of all the parts of a request: its last, with what came before."""
    whole = parts[-1]
    whole.new_token_ids = [token for part in parts for token in part.new_token_ids]
    whole.events = [event for part in parts for event in part.events or ()] or None
    for name in ("prefill_stats", "new_prompt_logprobs_tensors"):
        setattr(whole, name, next((v for part in parts if (v := getattr(part, name)) is not None), None))
    scored = [part.new_logprobs for part in parts if part.new_logprobs is not None]
    if scored:
        ids, values, ranks = (np.concatenate(arrays) for arrays in list(zip(*scored, strict=True))[:3])
        whole.new_logprobs = scored[-1]._replace(
            logprob_token_ids=ids, logprobs=values, sampled_token_ranks=ranks, cu_num_generated_tokens=None
        )
        kept = state.logprobs_processor if state is not None else None
        if ids.shape[1] == 1 and kept is not None and isinstance(kept.logprobs, FlatLogprobs):
            _append_all(kept, ids[:, 0].tolist(), values[:, 0].tolist(), ranks.tolist())
            whole.new_logprobs = None
    return whole


def _append_all(kept, ids: list[int], values: list[float], ranks: list[int]) -> None:
    """What LogprobsProcessor would append row by row, for the sampled token alone."""
    flat, start = kept.logprobs, len(kept.logprobs.logprobs)
    flat.start_indices.extend(range(start, start + len(ids)))
    flat.end_indices.extend(range(start + 1, start + 1 + len(ids)))
    flat.token_ids.extend(ids)
    flat.logprobs.extend(values)
    flat.ranks.extend(ranks)
    flat.decoded_tokens.extend([None] * len(ids))
    kept.cumulative_logprob += sum(values)


def extract_logprobs(all_outputs):
    """TRL's function of this name (trl/generation/vllm_generation.py, 1.16.0) for flat log-probabilities of the sampled token.

    Returns:
        log-probabilities and token ids, each (completions, tokens, 1); a log-probability is None where vLLM has NaN. Both are
        None where none were asked for.
    """
    values, ids = [], []
    for output in all_outputs:
        for completion in output.outputs:
            flat = completion.logprobs
            if flat is None:
                return None, None
            values.append([[None if math.isnan(value) else value] for value in flat.logprobs])
            ids.append([[token] for token in flat.token_ids])
    return values, ids
