"""A whole study without vLLM, from the options to what is printed and exported."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune import lease
from autotune.candidates.lattice import SEQS, TOKENS
from tests.autotune.cli.conftest import Autotune
from tests.autotune.cli.forked import Ran

pytestmark = pytest.mark.study

PROFILE = Path(__file__).parents[3] / "autotune/simulated/profiles/cpu-tiny-llama.json"
SHIPPED = "sim:cpu-tiny-llama"
NAME = "sim-cpu-tiny-llama-mixed-0:1"
LABEL = "Intel(R) Xeon(R) Processor, simulated (profile cpu-tiny-llama)"
LINE = f"No engine was run, all times are those of {LABEL}, vLLM 0.32.0."

Tune = Callable[..., Ran]


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autotune: Autotune) -> Tune:
    """Tune on a second of traffic, in a fresh folder, where vLLM cannot be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lease, "LOCKS", tmp_path)
    monkeypatch.setitem(sys.modules, "vllm", None)

    def command(*arguments: str, engine: str = SHIPPED) -> Ran:
        return autotune(
            "tune", "--engine", engine, "--trace", "demo:mixed", "--window", "0:1",
            "--budget", "ttft_p95:500 tpot_p95:60", "--classes", "", *arguments,
        )  # fmt: skip

    return command


def test_a_study_ends_with_a_verdict_and_says_everywhere_what_it_is(
    tune: Tune, autotune: Autotune
) -> None:
    ran = tune("--trials", "6")
    assert ran.code == 0
    assert "simulating cpu-tiny-llama: no engine runs" in ran.err
    assert "baseline 2048/128: starting an engine; simulated" in ran.err
    assert "All this is a forecast: measure it" in ran.out
    assert ran.out.splitlines()[0] == LINE
    assert "# simulated: cpu-tiny-llama\n" in ran.out
    assert f"# device: {LABEL}\n" in ran.out
    notice, use, *_ = ran.out[ran.out.index("# NOTE: ") :].splitlines()
    assert notice.startswith(
        "# NOTE: SIMULATED, no engine was run: a forecast by the profile cpu-tiny-llama, "
    )
    assert use == "# use: vllm serve MODEL --config FILE.yaml"
    assert (
        "\n# model: put the one to serve here; the profile was measured with tiny-llama\n"
        in ran.out
    )
    assert "\nmodel: " not in ran.out
    assert "load-format" not in ran.out
    for line in ("dtype: bfloat16", "kv-cache-memory-bytes: 67108864", "enforce-eager: true"):
        assert f"\n{line}\n" in ran.out
    for command in (("show",), ("trials",), ("show", "2")):
        assert autotune(*command).out.splitlines()[1] == LINE
    exported = autotune("best", "--format", "args")
    assert "# simulated: cpu-tiny-llama\n" in exported.out
    assert exported.err.splitlines()[0] == LINE
    assert "finished, simulated" in autotune("studies").out
    for command in (("show",), ("show", "2"), ("best",)):
        body = json.loads(autotune(*command, "--format", "json").out)
        assert (body.get("verdict") or body)["simulated"] == "cpu-tiny-llama"
    listed = [json.loads(autotune(each, "--format", "json").out) for each in ("studies", "trials")]
    assert {row["simulated"] for rows in listed for row in rows} == {"cpu-tiny-llama"}


def test_a_study_goes_on_and_repeats_exactly(tune: Tune) -> None:
    limits = ("--trials", "2", "--no-calibrate", "--format", "json")
    first = json.loads(tune(*limits).out)["trials"]
    more = json.loads(tune(*limits[2:], "--trials", "3").out)["trials"]
    again = json.loads(tune(*limits, "--study-name", "again").out)["trials"]
    assert more[:2] == first
    assert len(more) == 3
    assert [row["metrics"] for row in again] == [row["metrics"] for row in first]


def test_another_profile_is_another_study(tune: Tune) -> None:
    assert tune("--trials", "1").code == 0
    Path("mine.json").write_text(PROFILE.read_text().replace('"run": 0.04', '"run": 0.0'))
    ran = tune("--trials", "1", "--study-name", NAME, engine="sim:mine.json")
    assert ran.code == 2
    assert "engine: 'sim:cpu-tiny-llama@" in ran.err


def test_a_knob_a_plan_and_a_model_by_name(tune: Tune) -> None:
    knob = ("--knob", "long_prefill_token_threshold=0,256", "--engine-arg", f"{TOKENS}=1024")
    planned = tune("--dry-run", *knob)
    assert planned.code == 0
    assert planned.out.startswith("engines: simulated; none starts")
    assert planned.out.splitlines()[-1] == f"vLLM 0.32.0 on {LABEL}"
    body = json.loads(tune("--dry-run", *knob, "--format", "json").out)
    assert body["simulated"] == "cpu-tiny-llama"
    assert body["baseline"][TOKENS] == 1024
    ran = tune("--trials", "1", *knob, "--model", "meta-llama/Llama-3.1-8B")
    assert "\nmodel: meta-llama/Llama-3.1-8B\n" in ran.out
    assert "# use: vllm serve --config FILE.yaml\n" in ran.out
    assert "# NOTE: SIMULATED, " in ran.out
    assert "long-prefill-token-threshold: 0\n" in ran.out


def test_hints_on_requests_that_are_too_long_are_such_as_the_profile_allows(
    tune: Tune, tmp_path: Path
) -> None:
    def row(at_ms: int, prompt: int) -> str:
        given = {"timestamp": at_ms, "input_length": prompt, "output_length": 8}
        return json.dumps({**given, "hash_ids": list(range(-(-prompt // 512)))})

    path = tmp_path / "long.jsonl"
    path.write_text("\n".join([row(0, 100), row(5, 200), row(9, 9000)]) + "\n")
    long = ("--trace", str(path), "--dry-run")
    ran = tune(*long)
    assert ran.code == 2
    assert ran.err.splitlines()[-1] == (
        "hint: the profile cpu-tiny-llama allows no more than 8192: leave them out with "
        "--too-long skip, or cut them with --too-long truncate"
    )
    for policy in ("skip", "truncate"):
        assert tune(*long, "--too-long", policy).code == 0
    path.write_text("\n".join([row(0, 100), row(5, 200), row(9, 4000)]) + "\n")
    ran = tune(*long, "--engine-arg", "max_model_len=2048")
    assert ran.err.splitlines()[-1].startswith("hint: give --engine-arg max_model_len=4032, ")
    assert tune(*long, "--engine-arg", "max_model_len=4032").code == 0


@pytest.mark.parametrize(
    ("engine", "arguments", "message", "hint"),
    [
        ("sim:cpu", (), "no profile 'cpu' is shipped", "cpu-tiny-llama"),
        ("sim:", (), "--engine: must be vllm, or sim: and a profile", "--help"),
        ("tgi", ("--model", "m"), "--engine: must be vllm, or sim: and a profile", "--help"),
        ("vllm", (), "--model is missing", "--model"),
        (
            SHIPPED,
            ("--engine-arg", f"{SEQS}=4096"),
            f"{TOKENS} (2048) must be greater than or equal to {SEQS} (4096).",
            "calibrate --save",
        ),
        (
            SHIPPED,
            ("--engine-arg", "max_num_seq=8"),
            "max_num_seq cannot be simulated: the profile cpu-tiny-llama was not measured with it",
            SEQS,
        ),
        (
            SHIPPED,
            ("--knob", "cudagraph_capture_sizes=[1],[2]"),
            "cudagraph_capture_sizes cannot be simulated",
            "calibrate --save",
        ),
    ],
)
def test_what_cannot_be_simulated_is_said_in_one_line(
    tune: Tune, engine: str, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    ran = tune(*arguments, engine=engine)
    assert ran.code == 2
    error, told = ran.err.splitlines()[-2:]
    assert error.startswith(f"error: {message}")
    assert hint in told
    assert not Path("autotune.db").exists()


def test_a_deadline_from_the_command_line_to_the_verdict(tune: Tune, autotune: Autotune) -> None:
    refused = tune("--timeout", "30s", "--dry-run")
    assert refused.code == 2
    assert "too short to measure anything" in refused.err
    body = json.loads(tune("--timeout", "8m", "--dry-run", "--format", "json").out)["time"]
    assert (body["deadline"], body["deadline_s"]) == ("--timeout 8m", 480.0)
    ran = tune("--timeout", "8m", "--no-calibrate", "--trials", "60", "--format", "json")
    assert ran.code == 0
    assert "ends after 480 s of simulated time" in ran.err
    verdict = json.loads(ran.out)["verdict"]
    assert verdict["ended_by"] == "deadline"
    assert verdict["left_out"]["holdout_replays"] == 0
    assert "Ended by its deadline, with " in autotune("show").out
