from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.demo import resolve_trace
from autotune.traffic.trace import load_trace, save_trace
from autotune.traffic.window import parse_window
from tests.autotune.cli.conftest import Autotune
from tests.autotune.cli.forked import Ran
from tests.autotune.study.scripted import small_trace
from tests.autotune.study.simulated import NAME, simulated_study

pytestmark = pytest.mark.study

LINE = "No engine was run, all times are those of Intel(R) Xeon(R) Processor, simulated"
TRIALS = ("trials", "cut_short", "failed")
MEASURED = ("512/128", "256/128", "2048/128")

Forecast = Callable[..., Ran]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated_study(tmp_path_factory.mktemp("forecast"))


@pytest.fixture
def forecast(database: Path, autotune: Autotune) -> Forecast:
    return lambda *arguments: autotune(
        "forecast", "--storage", f"sqlite:///{database}", *arguments
    )


def rows_of(ran: Ran) -> list[list[str]]:
    about, head, *rest = ran.out.splitlines()
    assert about.startswith("At today's traffic, ")
    assert head.split()[:2] == ["tokens/seqs", "ttft_p95"]
    return [line.split() for line in rest[: rest.index("")]]


def body_of(ran: Ran) -> dict[str, object]:
    assert ran.code == 0
    assert "NaN" not in ran.out
    found = json.loads(ran.out)
    assert isinstance(found, dict)
    return found


def test_a_list_of_candidates_with_what_was_measured_marked(forecast: Forecast) -> None:
    ran = forecast()
    assert ran.code == 0
    assert ran.err.startswith(LINE)
    assert ran.err.splitlines()[1].startswith("simulating all 8 candidates, by the steps of 4 rep")
    assert ran.out.startswith("At today's traffic, judged by ttft_p95:500 itl_p99:60:\n")
    rows = rows_of(ran)
    assert len({row[0] for row in rows}) == len(rows) == 8
    assert {row[0] for row in rows if row[-1] == "measured"} == set(MEASURED)
    assert [row[0] for row in rows if row[-1] == "next"] == ["1024/128"]
    assert {row[0] for row in rows if row[-1] == "forecast"} == {row[0] for row in rows} - {
        *MEASURED,
        "1024/128",
    }
    trust, following, attribution, chance = ran.out.splitlines()[-4:]
    assert following == "The search would try 1024/128 next."
    assert trust.startswith("Ranges hold what 9 of 10 candidates do")
    assert attribution.startswith(f"By forecast, from 2048/128 to 512/128, {TOKENS} alone: ")
    assert SEQS not in attribution
    assert chance.startswith("As many candidates drawn at random would end ")


def test_a_narrow_screen_leaves_objectives_out_or_has_blocks(
    forecast: Forecast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = forecast("--top", "1").out.splitlines()
    assert rows[1].split() == ["tokens/seqs", "ttft_p95", "itl_p99", "keeps", "budget"]
    monkeypatch.setenv("COLUMNS", "40")
    rows = forecast("--candidate", "2048/128").out.splitlines()
    block = rows[1 : rows.index("")]
    assert block[0] == "2048/128 measured"
    assert [line.split()[0] for line in block[1:]] == [
        "ttft_p95",
        "itl_p99",
        "utilization",
        "keeps",
    ]
    assert max(map(len, block)) <= 40


def test_limits_that_were_worked_out_have_no_more_digits_than_count(forecast: Forecast) -> None:
    about = forecast("--budget", "itl_p99:0.9x", "--top", "1").out.splitlines()[0]
    limit = about.partition("itl_p99:")[2].removesuffix(":")
    assert 4 <= len(limit) <= 7


def test_the_first_so_many_all_measured_ones_and_the_next(forecast: Forecast) -> None:
    ran = forecast("--top", "1")
    assert {row[0] for row in rows_of(ran)} == {*MEASURED, "1024/128"}
    assert "The search would try 1024/128 next." in ran.out


def test_nothing_is_written(forecast: Forecast, database: Path) -> None:
    before = sha256(database.read_bytes()).digest()
    for arguments in (("--budget", "ttft_p95:140"), ("--candidate", "1024/128", "--load", "2")):
        assert forecast(*arguments).code == 0
    assert sha256(database.read_bytes()).digest() == before
    assert {each.name for each in database.parent.glob("study.db*")} == {database.name}


def test_another_budget(forecast: Forecast) -> None:
    rows = rows_of(forecast("--budget", "ttft_p95:1"))
    assert {tuple(row[-3:-1]) for row in rows} == {("<1", "%")}
    rows = rows_of(forecast("--budget", ""))
    assert {row[-2] for row in rows} == {"-"}
    # 512/128 is the verdict's by the study's own budget alone.
    by_other = forecast("--budget", "ttft_p95:9999 itl_p99:20").out
    assert "to 512/128" not in by_other
    found = body_of(forecast("--budget", "e2e_p95:9s", "--format", "json"))
    assert found["budget"] == "e2e_p95:9000"


def test_one_candidate_and_the_load_that_it_holds(forecast: Forecast) -> None:
    ran = forecast("--candidate", "256/8")
    assert [row[0] for row in rows_of(ran)] == ["256/8"]
    assert "The budget holds up to 1." in ran.out
    assert "By forecast" not in ran.out
    assert "is not kept" in forecast("--candidate", "256/8", "--budget", "ttft_p95:1").out
    assert "The budget" not in forecast("--candidate", "256/8", "--budget", "").out


def test_one_candidate_at_another_load(forecast: Forecast) -> None:
    arguments = ("--candidate", "1024/128", "--load", "2")
    ran = forecast(*arguments)
    line = ran.out.splitlines()[-1]
    assert line.startswith("At 2 times today's traffic: ttft_p95 ")
    assert line.endswith(" %: the budget is kept.")
    broken = forecast(*arguments, "--budget", "ttft_p95:1").out.splitlines()[-1]
    assert broken.endswith(" %: ttft_p95 breaks the budget.")


def test_json(forecast: Forecast) -> None:
    found = body_of(forecast("--format", "json"))
    forecasts = found.pop("forecasts")
    assert found.pop("simulated") == "cpu-tiny-llama"
    assert found.pop("study") == NAME
    assert found.pop("budget") == "ttft_p95:500 itl_p99:60"
    assert found.pop("next") == {TOKENS: 1024, SEQS: 128}
    assert set(found) == {"trust", "step_time_error"}
    assert isinstance(forecasts, list)
    assert len(forecasts) == 8
    assert set(forecasts[0]) == {"candidate", "metrics", "keeps_budget", "loss", *TRIALS}
    assert forecasts[0]["candidate"] == {TOKENS: 512, SEQS: 128}
    assert forecasts[0]["trials"] == [2, 4]


def test_json_of_one_candidate(forecast: Forecast) -> None:
    arguments = ("--candidate", "1024/128", "--load", "1", "--format", "json")
    found = body_of(forecast(*arguments))
    one, load = found["forecast"], found["at_load"]
    assert isinstance(one, dict)
    assert isinstance(load, dict)
    assert "forecasts" not in found
    assert found["holds_up_to_load"] == 4.0
    means = {key: bounds["mean"] for key, bounds in one["metrics"].items()}
    assert load == {"load": 1.0, "metrics": pytest.approx(means), "broken": []}
    assert "at_load" not in body_of(forecast(*arguments[:2], "--format", "json"))


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (("--load", "2"), "--load needs --candidate", "--candidate 2048/128"),
        (
            ("--candidate", "256/8", "--load", "nan"),
            "--load nan: must be a number from 0.1 to 10",
            "1.5",
        ),
        (
            ("--candidate", "256/8", "--load", "0"),
            "--load 0: must be a number from 0.1 to 10",
            "1.5",
        ),
        (("--candidate", "256"), "--candidate '256' is not tokens/seqs", TOKENS),
        (("--candidate", "256/"), "is not tokens/seqs", TOKENS),
        (("--candidate", "256/8/0"), "is not tokens/seqs", TOKENS),
        (("--candidate", "-256/8"), "is not tokens/seqs", TOKENS),
        (("--candidate", " 256/8"), "is not tokens/seqs", TOKENS),
        (("--candidate", "256/8\n"), "is not tokens/seqs", TOKENS),
        (("--candidate", "\uff12\uff15\uff16/8"), "is not tokens/seqs", TOKENS),
        (("--candidate", f"{'9' * 5000}/8"), "is not tokens/seqs", TOKENS),
        (("--candidate", "257/8"), "no such candidate", f"{TOKENS}: 256, 512, 1024, 2048; "),
        (("--budget", "ttft"), "'ttft'", "ttft"),
        (("--budget", "ttft_p95@long:9"), "long", f"study '{NAME}' has no classes; "),
        (("--top", "0"), "'--top'", "--help"),
        (("--trace", "none.jsonl"), "none.jsonl", "that exists"),
        (("--study-name", "whatiff"), "no study named 'whatiff'", f"'{NAME}'"),
    ],
)
def test_what_cannot_be_meant(
    forecast: Forecast, arguments: tuple[str, ...], error: str, hint: str
) -> None:
    ran = forecast(*arguments)
    assert (ran.code, ran.out) == (2, "")
    said, told = ran.err.splitlines()[-2:]
    assert said.startswith("error: ")
    assert error in said
    assert told.startswith("hint: ")
    assert hint in told
    # What takes long is not begun before.
    assert "simulating all" not in ran.err


def changed(database: Path, folder: Path, statement: str, *values: str) -> str:
    """Return the URL of a copy of the database on which a statement was run."""
    path = folder / "changed.db"
    path.write_bytes(database.read_bytes())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)
    return f"sqlite:///{path}"


def test_a_trace_that_has_moved_or_changed(
    database: Path, tmp_path: Path, autotune: Autotune
) -> None:
    whole = load_trace(resolve_trace("demo:mixed"))
    save_trace(whole, tmp_path / "moved.jsonl")
    save_trace(small_trace(), tmp_path / "other.jsonl")
    gone = tmp_path / "gone.jsonl"
    url = changed(
        database,
        tmp_path,
        "UPDATE autotune_study SET spec = json_set(spec, '$.trace', ?)",
        str(gone),
    )
    ran = autotune("forecast", "--storage", url)
    assert ran.code == 2
    assert f"{gone}" in ran.err
    assert ran.err.endswith("if it has moved, give it with --trace\n")
    ran = autotune("forecast", "--storage", url, "--trace", tmp_path / "moved.jsonl")
    assert (ran.code, len(rows_of(ran))) == (0, 8)
    ran = autotune("forecast", "--storage", url, "--trace", tmp_path / "other.jsonl")
    assert ran.code == 2
    assert "error: the trace is not the traffic that study 'whatif' replayed" in ran.err
    assert f"hint: it was {gone}; if that has changed since" in ran.err
    # The window is cut out of it again.
    save_trace(parse_window("0:1").apply(whole), gone)
    assert autotune("forecast", "--storage", url).code == 2


def test_a_study_that_has_no_forecasts(studies: str, autotune: Autotune) -> None:
    ran = autotune("forecast", "--storage", studies, "--study-name", "knee")
    assert (ran.code, ran.out) == (2, "")
    assert "small.jsonl" in ran.err


def test_a_study_without_a_calibration(database: Path, tmp_path: Path, autotune: Autotune) -> None:
    url = changed(
        database,
        tmp_path,
        "UPDATE autotune_study SET spec = json_set(spec, '$.calibration', json('null'))",
    )
    ran = autotune("forecast", "--storage", url)
    assert ran.code == 2
    assert "error: study 'whatif' has no calibration to forecast from" in ran.err
    assert "--no-calibrate" in ran.err.splitlines()[-1]
