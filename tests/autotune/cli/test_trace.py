from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from autotune.cli.trace import ScenarioName, TraceFormat, app
from autotune.demo import resolve_trace
from autotune.errors import AutotuneError, TraceError, UsageError
from autotune.traffic.formats import FORMATS
from autotune.traffic.formats.native import meta_path
from autotune.traffic.inspect import describe
from autotune.traffic.scenarios import SCENARIOS
from autotune.traffic.trace import load_trace
from tests.autotune.traffic.examples import MOONCAKE

ROOT = Path(__file__).resolve().parents[3]
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.5,374,44
2023-11-16 18:15:47.5,0,109
2023-11-16 18:15:56.5,879,55
"""


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def failure(*arguments: str | Path) -> AutotuneError:
    error = run(*arguments).exception
    assert isinstance(error, AutotuneError)
    return error


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return path


def test_import_writes_a_trace_and_says_what_it_left_out(azure: Path, tmp_path: Path) -> None:
    destination = tmp_path / "a.jsonl"
    result = run("import", azure, destination)
    assert result.exit_code == 0
    assert result.stdout == f"{destination}\n"
    assert "Rows without prompt or output tokens, left out: 1." in result.stderr
    assert "2 requests, 10.0 s, sha256 " in result.stderr
    assert load_trace(destination).timestamps_s.tolist() == [0.0, 10.0]
    assert load_trace(destination).meta.source == "azure.csv"


def test_import_obeys_the_format(azure: Path, tmp_path: Path) -> None:
    error = failure("import", azure, tmp_path / "a.jsonl", "--format", "native")
    assert isinstance(error, TraceError)
    assert "azure.csv:1: " in error.message
    assert not (tmp_path / "a.jsonl").exists()


def test_import_makes_arrivals_where_there_are_none(tmp_path: Path) -> None:
    source, destination = tmp_path / "share.json", tmp_path / "a.jsonl"
    turns = [{"from": "human", "value": "SECRET " * 40}, {"from": "gpt", "value": "SECRET"}]
    source.write_text(json.dumps([{"conversations": turns}] * 20))
    assert isinstance(failure("import", source, destination), UsageError)
    result = run("import", source, destination, "--rate", "5", "--seed", "3")
    assert result.exit_code == 0
    assert "arrivals were made, a Poisson process of 5 requests/s (seed 3)" in result.stderr
    assert "Lengths of texts are estimates" in result.stderr
    trace = load_trace(destination)
    assert trace.meta.requests == 20
    assert trace.meta.prefixes == "estimated"
    written = destination.read_text() + meta_path(destination).read_text()
    assert "SECRET" not in written + result.stderr + result.stdout
    assert json.loads(run("inspect", destination, "--format", "json").stdout)["requests"] == 20


def test_import_joins_a_batch_with_its_answers(tmp_path: Path) -> None:
    source, answers = tmp_path / "batch.jsonl", tmp_path / "answers.jsonl"
    body = {"prompt": "a" * 99, "max_tokens": 500}
    source.write_text(json.dumps({"custom_id": "1", "url": "/v1/completions", "body": body}))
    usage = {"prompt_tokens": 30, "completion_tokens": 7}
    response = {"status_code": 200, "body": {"usage": usage}}
    answers.write_text(json.dumps({"custom_id": "1", "response": response}))
    destination = tmp_path / "a.jsonl"
    assert run("import", source, destination, "--rate", "5", "--answers", answers).exit_code == 0
    assert load_trace(destination).output_lengths.tolist() == [7]


@pytest.mark.shared
def test_a_recorded_trace_is_imported_and_redacted(tmp_path: Path) -> None:
    imported, clean = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    assert run("import", MOONCAKE, imported).exit_code == 0
    result = run("redact", imported, clean)
    assert result.exit_code == 0
    assert "Texts removed from 0 requests" in result.stderr
    before, after = load_trace(imported), load_trace(clean)
    assert after.timestamps_s.tolist() == before.timestamps_s.tolist()
    assert after.meta.prefixes == before.meta.prefixes
    assert describe(after) == describe(before)
    assert not {*after.requests[0].hash_ids} & {*before.requests[0].hash_ids}


def test_redact_takes_a_salt(tmp_path: Path) -> None:
    salt = tmp_path / "salt"
    salt.write_bytes(bytes(range(32)))
    for name in ("a.jsonl", "b.jsonl"):
        arguments = ("redact", "demo:mixed", tmp_path / name, "--salt-file", salt)
        assert run(*arguments, "--drop-models").exit_code == 0
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert (tmp_path / "a.jsonl").stat().st_mode & 0o777 == 0o600


def test_inspect_draws_the_demo_trace() -> None:
    result = run("inspect", "demo:mixed")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "Prompt tokens" in result.stdout
    assert "< cut 1000" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_inspect_prints_json() -> None:
    result = run(
        "inspect", "demo:mixed", "--format", "json", "--budget-tokens", "128",
        "--classes", "chat:0-500",
    )  # fmt: skip
    figures = json.loads(result.stdout)
    assert figures["budget_tokens"] == 128
    assert 0.5 < figures["share_over_budget"] < 1
    assert [each["name"] for each in figures["classes"]] == ["chat"]
    assert figures["recommended_max_model_len"] % 64 == 0


def test_inspect_refuses_what_is_no_class() -> None:
    error = failure("inspect", "demo:mixed", "--classes", "short")
    assert isinstance(error, UsageError)
    assert error.hint


def test_inspect_names_a_missing_trace(tmp_path: Path) -> None:
    error = failure("inspect", tmp_path / "a.jsonl")
    assert isinstance(error, TraceError)
    assert "No such file" in error.message


@pytest.mark.parametrize(("spec", "seconds"), [("10:20", 10), ("busiest:5s", 5)])
def test_window_cuts(tmp_path: Path, spec: str, seconds: int) -> None:
    destination = tmp_path / "a.jsonl"
    result = run("window", "demo:mixed", destination, "--window", spec)
    assert result.exit_code == 0
    assert "The window is " in result.stderr
    cut = load_trace(destination)
    assert cut.duration_s < seconds
    assert 0 < cut.meta.requests < load_trace(resolve_trace("demo:mixed")).meta.requests


def test_window_says_that_it_reaches_beyond_the_end(azure: Path, tmp_path: Path) -> None:
    result = run("window", azure, tmp_path / "a.jsonl", "--window", "5:60")
    assert result.exit_code == 0
    left_out = "Rows without prompt or output tokens, left out: 1."
    assert result.stderr.count(left_out) == 1
    assert "The window ends at 60 s, the trace at 10.0 s." in result.stderr
    assert (
        "The window ends"
        not in run("window", azure, tmp_path / "a.jsonl", "--window", "5:10.01").stderr
    )


def test_one_request_can_be_looked_at_and_cut(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 600, "output_length": 5}')
    assert "1 in 0.0 s" in run("inspect", path).stdout
    assert json.loads(run("inspect", path, "--format", "json").stdout)["rate_per_s"] is None
    for spec in ("0:1", "busiest:1s"):
        assert run("window", path, tmp_path / "a.jsonl", "--window", spec).exit_code == 0


def test_window_refuses_what_is_no_window(tmp_path: Path) -> None:
    error = failure("window", "demo:mixed", tmp_path / "a.jsonl", "--window", "soon")
    assert isinstance(error, UsageError)


def test_a_window_is_inspected_as_it_would_be_cut(tmp_path: Path) -> None:
    spec = ("--window", "busiest:10s")
    inspected = run("inspect", "demo:mixed", *spec, "--format", "json")
    run("window", "demo:mixed", tmp_path / "a.jsonl", *spec)
    cut = run("inspect", tmp_path / "a.jsonl", "--format", "json")
    assert json.loads(inspected.stdout) == json.loads(cut.stdout)
    assert inspected.stderr.startswith("The window is ")
    assert isinstance(failure("inspect", "demo:mixed", "--window", "soon"), UsageError)


def test_synth_takes_lengths(tmp_path: Path) -> None:
    destination = tmp_path / "a.jsonl"
    result = run(
        "synth", destination, "--scenario", "mixed", "--rate", "20", "--duration", "20",
        "--document-share", "0.5", "--chat-prompt", "median=50,min=40,max=60",
        "--document-output", "median=7,sigma=0,min=7", "--chat-output", "median=9,sigma=0",
        "--document-prompt", "min=5000", "--prefix-sharing", "0.5", "--block-size", "8",
    )  # fmt: skip
    assert result.exit_code == 0
    made = load_trace(destination)
    chats = made.input_lengths < 5000
    assert 0.3 < chats.mean() < 0.7
    assert 40 <= made.input_lengths[chats].min() <= made.input_lengths[chats].max() <= 60
    assert set(made.output_lengths[chats].tolist()) == {9}
    assert set(made.output_lengths[~chats].tolist()) == {7}
    assert made.meta.block_size == 8


@pytest.mark.parametrize(
    ("scenario", "option", "said"),
    [
        ("short_chat", "--document-prompt", "--document-prompt: this traffic has no documents"),
        ("long_documents", "--chat-output", "--chat-output: this traffic has no chats"),
    ],
)
def test_synth_ignores_no_lengths(tmp_path: Path, scenario: str, option: str, said: str) -> None:
    arguments: list[str | Path] = [
        "synth", tmp_path / "a.jsonl", "--scenario", scenario, "--rate", "1", "--duration", "9s",
        option, "max=40000",
    ]  # fmt: skip
    assert failure(*arguments).message == said
    assert run(*arguments, "--document-share", "0.5").exit_code == 0


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1.5m", 90), ("90s", 90)])
def test_a_duration_is_written_as_in_a_window(tmp_path: Path, text: str, seconds: int) -> None:
    destination = tmp_path / "a.jsonl"
    run("synth", destination, "--scenario", "mixed", "--rate", "2", "--duration", text)
    assert seconds * 0.9 < load_trace(destination).duration_s < seconds


@pytest.mark.parametrize("text", ["soon", "-5", "nan", "10x"])
def test_what_is_no_duration_is_refused(tmp_path: Path, text: str) -> None:
    error = failure(
        "synth", tmp_path / "a.jsonl", "--scenario", "mixed", "--rate", "1", f"--duration={text}"
    )
    assert error.message == f"{text!r} is no length of time"


@pytest.mark.parametrize("command", ["import", "window", "synth"])
def test_no_command_replaces_a_pipe(azure: Path, tmp_path: Path, command: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    arguments: dict[str, list[str | Path]] = {
        "import": [azure, pipe],
        "window": [azure, pipe, "--window", "0:5"],
        "synth": [pipe, "--scenario", "mixed", "--rate", "1", "--duration", "5"],
    }
    error = failure(command, *arguments[command])
    assert isinstance(error, UsageError)
    assert error.message == f"{pipe}: is no regular file"
    assert pipe.is_fifo()


def test_synth_refuses_a_burstiness_that_would_not_end(tmp_path: Path) -> None:
    error = failure(
        "synth", tmp_path / "a.jsonl", "--scenario", "mixed", "--rate", "1", "--duration", "5",
        "--burstiness", "1e-300",
    )  # fmt: skip
    assert isinstance(error, UsageError)
    assert "it must be from 0.01 to 1e+06" in error.message


def test_the_shipped_trace_is_made_by_its_script(tmp_path: Path) -> None:
    destination = tmp_path / "mixed.jsonl"
    subprocess.run(
        [ROOT / "scripts" / "make_demo_trace", destination],
        env={**os.environ, "PYTHON": sys.executable},
        check=True,
        capture_output=True,
    )
    shipped = resolve_trace("demo:mixed")
    assert destination.read_bytes() == shipped.read_bytes()
    assert meta_path(destination).read_bytes() == meta_path(shipped).read_bytes()


def test_choices_are_those_of_the_library() -> None:
    assert [each.value for each in ScenarioName] == list(SCENARIOS)
    assert [each.value for each in TraceFormat] == ["auto", *FORMATS]


def test_the_module_imports_nothing_heavy() -> None:
    code = (
        "import sys, autotune.cli.trace;"
        "print([m for m in ('numpy', 'pydantic', 'optuna', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
