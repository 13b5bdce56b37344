"""The pages under docs/ name everything that the code defines, and nothing else."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import yaml

import autotune.errors
from autotune import tuning
from autotune.candidates import diagnosis, starts
from autotune.cli import endpoint_doctor, show, signals, tune
from autotune.cli.options import OutputFormat
from autotune.demo import resolve_trace
from autotune.endpoint_settings import EndpointSettings
from autotune.engine import endpoint_checks
from autotune.engine.protocol import DETERMINISTIC_FAILURES, EngineInfo, FailureClass
from autotune.export import Format
from autotune.forecast import calibration, choice, edges, forecaster, residuals, sweep
from autotune.hardware import model_shape
from autotune.settings import TuneSettings, parse_engine_args, parse_knobs
from autotune.study import (
    calibrate,
    checkup,
    chunking,
    compare_results,
    compare_sides,
    costs,
    earned,
    ending,
    endpoint_replay,
    findings,
    held,
    judgement,
    outlook,
    plan,
    replays,
    sampler,
    schedule,
    screen,
    single,
    view,
)
from autotune.traffic.formats import FORMATS
from autotune.traffic.model import TraceMeta, TraceRequest
from autotune.traffic.scenarios import SCENARIOS
from autotune.traffic.trace import load_trace
from autotune.traffic.window import parse_window
from objectives.classes import parse_classes
from objectives.limits import METRICS, Budget, parse_budget
from objectives.measurement import measure
from objectives.statistics import AGGREGATES, requests_needed
from storage import records, schema
from tests.command_tree import COMMAND, commands, options_of
from tests.objectives.builders import random_samples

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FORBIDDEN = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "lorem")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def missing(page: str, names: Sequence[str]) -> list[str]:
    """Return the names that the page does not have as code."""
    text = text_of(page)
    return [name for name in names if f"`{name}`" not in text]


def fences(page: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(page.read_text("utf-8")) if kind == language]


def numbers(text: str) -> set[float]:
    return {float(found) for found in re.findall(r"\d+(?:\.\d+)?", text)}


# Commands and options


def test_every_command_and_option_is_described_and_has_help() -> None:
    sections = dict(
        re.findall(r"^## `autotune ?(.*?)`\n(.*?)(?=^## |\Z)", text_of("cli.md"), re.M | re.S)
    )
    for name, command in commands():
        assert command.help, name
        assert all(each.help for each in command.params if not each.name.endswith("_completion"))
        shown = {each for each in options_of(command) if not each.endswith("-completion")}
        assert [option for option in shown if f"`{option}`" not in sections[name]] == []


def test_help_cuts_nothing_off_and_shows_defaults_plainly() -> None:
    for name, command in commands():
        shown = command.make_context(name, ["--help"], resilient_parsing=True).get_help()
        assert "…" not in shown, name
        # Arguments of which there may be several.
        assert "..." not in re.sub(r"(\[ARGS\]|\{[A-Z]+\})\.\.\.", "", shown), name
        assert "[default: (" not in shown, name
        assert "<bool>" not in shown, name


def test_the_tables_of_options_are_fresh() -> None:
    script = ROOT / "scripts" / "make_cli_reference"
    done = subprocess.run([sys.executable, script, "--check"], check=False, timeout=60)
    assert done.returncode == 0, "run scripts/make_cli_reference"


def command_lines(page: Path) -> list[list[str]]:
    """Return the words after ``autotune`` of every such command in the page's sh blocks.

    ``scripts/quickstart`` passes its options on to ``autotune tune``.
    """
    found = []
    for block in fences(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.replace("scripts/quickstart", "autotune tune"), comments=True)
            if "autotune" not in words:
                continue
            words = words[words.index("autotune") + 1 :]
            ends = [words.index(end) for end in (">", "|", "&&", ";;") if end in words]
            found.append(words[: min(ends, default=len(words))])
    return found


LINES = [
    pytest.param(words, id=f"{page.name}: {' '.join(words)[:60]}")
    for page in PAGES
    for words in command_lines(page)
]


@pytest.mark.parametrize("words", LINES)
def test_command_lines_parse(words: list[str]) -> None:
    command, rest = COMMAND, list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    assert command is not COMMAND or rest[:1] == ["--version"]
    if command is COMMAND:
        return
    given = command.make_context("autotune", rest).params
    parse_budget(given.get("budget") or "")
    parse_classes(given.get("classes") or "")
    parse_engine_args(given.get("engine_arg") or ())
    parse_knobs(given.get("knob") or ())
    window = given.get("window") or given.get("spec")
    if window is not None:
        parse_window(window)


def test_there_are_command_lines_of_every_command() -> None:
    shown = " / ".join(" ".join(each.values[0]) for each in LINES)  # type: ignore[arg-type]
    assert [
        name for name, each in commands() if not hasattr(each, "commands") and name not in shown
    ] == []


@each_page
def test_commands_in_running_text_exist(page: Path) -> None:
    known = {name: options_of(command) | {"--help"} for name, command in commands()}
    text = FENCE.sub("", page.read_text("utf-8"))
    if page.name == "bad-input.md":
        text = text.partition("<!-- Below this line")[0]
    for code in re.findall(r"`autotune ([^`]+)`", text):
        words = code.split()
        name = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
        if words[0].startswith("--"):
            name = ""
        elif words[0].isupper():
            continue
        assert name in known, code
        used = [word.partition("=")[0] for word in words if word.startswith("--")]
        assert [option for option in used if option not in known[name] | known[""]] == [], code


# Settings and environment


def test_every_setting_stands_with_its_default_in_configuration() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text_of("configuration.md"), re.MULTILINE))
    for name, field in TuneSettings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if field.is_required():
            assert rows[name] == "required"
        elif default not in (None, "", {}):
            assert rows[name] == f"`{default}`", name
        else:
            assert rows[name], name


def test_the_example_settings_are_valid() -> None:
    (example,) = fences(DOCS / "configuration.md", "yaml")
    settings = TuneSettings(**yaml.safe_load(example))
    assert parse_budget(settings.budget).limits
    assert parse_classes(settings.classes or "")


def test_what_the_quickstart_gives_stands_on_the_page() -> None:
    given = yaml.safe_load((ROOT / "scripts" / "quickstart.yaml").read_text("utf-8"))
    settings = TuneSettings(**given)
    section = text_of("first-study.md").partition("## What does the demo need?")[2]
    for name, value in settings.engine_args.items():
        assert f"| `{name}={str(value).lower()}` |" in section
    assert f"{settings.trials} trials" in (ROOT / "README.md").read_text("utf-8")


def environment_names() -> set[str]:
    """Return the upper-case strings of all modules that look at the environment."""
    found = set()
    for package in ("autotune", "storage", "objectives"):
        for path in (ROOT / package).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if "environ" in source:
                found |= {
                    node.value
                    for node in ast.walk(ast.parse(source))
                    if isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and re.fullmatch(r"[A-Z]+_[A-Z_]+|COLUMNS", node.value)
                    # Of the system, not of the environment.
                    and node.value not in os.sysconf_names
                }
    return found


def test_every_environment_variable_stands_in_configuration() -> None:
    names = environment_names()
    assert {"AUTOTUNE_STORAGE", "AUTOTUNE_ENGINE_HOST"} <= names
    assert missing("configuration.md", sorted({*names, "NO_COLOR"})) == []


# Words of the domain


def phases() -> set[str]:
    """Return the phases that the plan of a study makes steps of."""
    tree = ast.parse(Path(plan.__file__).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    return {
        str(call.args[0].value)
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id == "Step"
        and isinstance(call.args[0], ast.Constant)
    }


def literals(alias: Any) -> list[str]:
    """Return the strings of a Literal, or of a union of such."""
    parts = get_args(alias)
    return [word for part in parts for word in (literals(part) if get_args(part) else [part])]


def keys_written(module: ModuleType, function: str) -> list[str]:
    """Return the constant keys of all dicts that a function writes, those inside them too."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    (found,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    return [
        str(key.value)
        for node in ast.walk(found)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    ]


def engine_keys() -> list[str]:
    """Return what a complete trial says of its engine."""
    stored = [
        key
        for function in ("earn", "_cut_short", "engine_json")
        for key in keys_written(earned, function)
    ]
    assert {"failed_requests", "warmup", "censored"} <= set(stored)
    return [*stored, *(each.name for each in fields(EngineInfo))]


def replay_keys() -> list[str]:
    functions = ("bench_head", "client_figures", "bench_result", "replay_once")
    written = [key for name in functions for key in keys_written(single, name)]
    return [*written, *keys_written(endpoint_replay, "_result")]


def comparison_keys() -> list[str]:
    functions = ("comparison_json", "side_json", "difference_json")
    written = [key for name in functions for key in keys_written(compare_results, name)]
    return [*written, *compare_results.RATES, *literals(compare_sides.SideKind)]


def calibrate_keys() -> list[str]:
    read = (calibration.Calibration, calibration.Point, calibration.Batch, edges.Edge)
    return [
        *keys_written(calibrate, "to_json"),
        *keys_written(sweep, "to_json"),
        *(each.name for kind in read for each in fields(kind)),
        *literals(edges.EdgeKind),
    ]


def checkup_keys() -> list[str]:
    functions = ("checkup_json", "bill_json", "traffic_json")
    written = [key for name in functions for key in keys_written(checkup, name)]
    layers = [each.name for each in fields(model_shape.Layers)]
    return [*written, *layers, *(each.name for each in fields(findings.Finding))]


def exit_codes() -> set[int]:
    errors = [each for each in vars(autotune.errors).values() if isinstance(each, type)]
    of_errors = {
        each.exit_code for each in errors if issubclass(each, autotune.errors.AutotuneError)
    }
    return {0, 1, *of_errors, *(128 + signum for signum in signals._SIGNALS)}


def rates() -> list[str]:
    """Return the names of a measurement's values that are no latencies."""
    measured = measure(random_samples(20), classes=(), budget=Budget())
    return [name for name in measured.metrics if name.partition("_")[0] not in METRICS]


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("metrics.md", [*METRICS, *AGGREGATES, *rates(), costs.WORK_COST, "utilization"]),
        ("budget.md", [*METRICS, *AGGREGATES]),
        ("trials.md", literals(records.TrialState)),
        ("trials.md", literals(records.StudyState)),
        ("trials.md", sorted(phases())),
        ("trials.md", list(get_args(FailureClass))),
        ("diagnosis.md", list(get_args(diagnosis.Code))),
        ("diagnosis.md", [field.name for field in fields(diagnosis.Load)]),
        ("verdict.md", [*get_args(judgement.Code), *keys_written(judgement, "verdict_json")]),
        ("verdict.md", [*keys_written(held, "shown"), *keys_written(held, "_result")]),
        ("export.md", [*get_args(Format), *keys_written(view, "_holdout_json")]),
        ("cli.md", [each.value for each in OutputFormat]),
        ("traces.md", [*FORMATS, *SCENARIOS, *(each.name for each in fields(TraceMeta))]),
        (
            "traces.md",
            [each.name.replace("timestamp_ms", "timestamp") for each in fields(TraceRequest)],
        ),
        ("json.md", keys_written(view, "trial_json")),
        ("json.md", [*keys_written(show, "show"), *keys_written(show, "_show_trial")]),
        ("json.md", keys_written(tune, "_print")),
        ("json.md", engine_keys()),
        ("json.md", [*keys_written(outlook, "outlook"), *keys_written(outlook, "_held")]),
        ("json.md", keys_written(tuning, "plan_study")),
        ("json.md", keys_written(schedule, "to_json")),
        ("verdict.md", [ending.ENDED_BY, ending.LEFT_OUT, *keys_written(ending, "ended_json")]),
        ("night.md", list(get_args(plan.EndedBy))),
        ("json.md", [each.name for each in fields(records.StudySummary)]),
        ("json.md", replay_keys()),
        ("endpoints.md", list(EndpointSettings.model_fields)),
        ("endpoints.md", list(get_args(endpoint_checks.CheckName))),
        ("json.md", list(get_args(endpoint_checks.CheckState))),
        ("json.md", keys_written(endpoint_doctor, "endpoint_json")),
        ("json.md", comparison_keys()),
        ("json.md", calibrate_keys()),
        ("json.md", checkup_keys()),
        ("json.md", [*literals(model_shape.LayerKind), *literals(findings.FindingState)]),
        ("kv-cache.md", literals(chunking.ChunkingCode)),
        ("storage.md", [*schema.metadata.tables, schema.VERSION_TABLE]),
    ],
)
def test_every_name_stands_on_its_page(page: str, names: list[str]) -> None:
    assert names
    assert missing(page, names) == []


def test_phases_are_read_from_the_plan() -> None:
    assert {"baseline", "starts", "search", "confirm"} <= phases()


def test_every_exit_code_has_a_row_and_no_other_has() -> None:
    rows = re.findall(r"^\| (\d+) \|", text_of("exit-codes.md"), re.MULTILINE)
    assert {int(row) for row in rows} == exit_codes()


def test_verdicts_stand_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [code for code in get_args(judgement.Code) if f"| `{code}` |" not in readme] == []


def test_failures_lead_where_the_page_says() -> None:
    rows = re.findall(
        r"^\| (`\w+`) \| .* \| `?(\w+)`?[^|]*\|$", text_of("trials.md"), re.MULTILINE
    )
    for name, leads_to in rows:
        if (name := name.strip("`")) in get_args(FailureClass):
            assert (leads_to == "infeasible") == (name in DETERMINISTIC_FAILURES), name


# Figures


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_requests_needed_are_those_of_the_code(aggregate: str) -> None:
    needed = requests_needed(aggregate)
    shown = "never" if needed is None else str(needed)
    assert f"| `{aggregate}` | {shown} |" in text_of("budget.md")


@pytest.mark.parametrize(
    ("page", "figures"),
    [
        (
            "diagnosis.md",
            [
                100 * diagnosis.FULL_STEP_SHARE,
                100 * diagnosis.BOUND_SHARE,
                100 * diagnosis.CHUNKED_SHARE,
            ],
        ),
        ("diagnosis.md", [100 * diagnosis.KV_FULL, diagnosis.STARVED_TPOT]),
        ("trials.md", [replays.MAX_SEND_LAG_MS, 100 * replays.MAX_SEND_LAG_SHARE]),
        ("trials.md", [plan.CONFIRM_FROM]),
        ("candidates.md", [starts.CHAT_PROMPT_TOKENS, starts.DOCUMENT_PROMPT_TOKENS]),
        ("candidates.md", [*starts.COMMON_SEQS, sampler.SPREAD_TRIALS]),
        ("verdict.md", [judgement.CONVERGED_COST, costs.RESAMPLES]),
        ("forecast.md", [*forecaster.FACTORS, 100 * forecaster.JITTER]),
        (
            "forecast.md",
            [
                100 * residuals.OFFSET,
                100 * residuals.LOCAL,
                100 * residuals.TILE,
                100 * residuals.CELL,
                100 * residuals.LEAST_NOISE,
                100 * residuals.RUN_NOISE,
                100 * residuals.USELESS_PRIOR,
                residuals.OCTAVES,
            ],
        ),
        ("forecast.md", [choice.DRAWS, choice.OPTIMISTIC]),
        ("forecast.md", [residuals.LEAST_TRUST, screen.SETTLED_TRUST, screen.SETTLED_GAIN]),
    ],
)
def test_thresholds_are_those_of_the_code(page: str, figures: list[float]) -> None:
    assert {round(figure, 6) for figure in figures} <= numbers(text_of(page))


# Examples


def test_every_budget_line_in_the_table_is_legal() -> None:
    examples = re.findall(r"^\| `([^`]*:[^`]*)` \|", text_of("budget.md"), re.MULTILINE)
    assert len(examples) >= 3
    assert all(parse_budget(example).limits for example in examples)


def test_every_window_in_the_table_is_legal() -> None:
    table = text_of("traces.md").partition("## Windows")[2].partition("## ")[0]
    examples = re.findall(r"^\| `([^`]*:[^`]*)` \|", table, re.MULTILINE)
    assert len(examples) >= 3
    bounds = [
        parse_window(example).bounds(load_trace(resolve_trace("demo:mixed")))
        for example in examples
    ]
    assert all(start_s < end_s for start_s, end_s in bounds)


def test_the_example_row_is_a_trace(tmp_path: Path) -> None:
    (row,) = fences(DOCS / "traces.md", "json")
    path = tmp_path / "example.jsonl"
    path.write_text(row, encoding="utf-8")
    assert len(load_trace(path).requests) == 1


@each_page
def test_python_examples_compile(page: Path) -> None:
    for example in fences(page, "python"):
        assert ast.parse(example).body
