"""``autotune best --budget``: stored trials under other limits, with forecasts of the rest."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.study.foresight import Foresight
from tests.autotune.cli.conftest import Autotune
from tests.autotune.cli.forked import Ran
from tests.autotune.study.simulated import simulated_study

pytestmark = pytest.mark.study

Best = Callable[..., Ran]

LOOSER = "ttft_p95:140 itl_p99:200"
"""That of TTFT is stricter, and what it wants was measured by the baseline."""

BETWEEN = "ttft_p95:145 itl_p99:50"
"""None that was measured keeps both; 1024/128, which was not, is forecast to."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated_study(tmp_path_factory.mktemp("best"))


@pytest.fixture
def best(database: Path, autotune: Autotune) -> Best:
    return lambda *arguments: autotune("best", "--storage", f"sqlite:///{database}", *arguments)


def limits_of(ran: Ran) -> tuple[int, int]:
    lines = dict(line.split(": ", 1) for line in ran.out.splitlines() if ": " in line)
    return int(lines["max-num-batched-tokens"]), int(lines["max-num-seqs"])


def test_another_budget_has_another_choice_and_nothing_is_written(
    best: Best, database: Path
) -> None:
    before = sha256(database.read_bytes()).digest()
    assert limits_of(best()) == (512, 128)
    ran = best("--budget", LOOSER)
    assert ran.code == 0
    assert limits_of(ran) == (2048, 128)
    assert f"# budget: {LOOSER}\n" in ran.out
    assert sha256(database.read_bytes()).digest() == before
    assert {each.name for each in database.parent.glob("study.db*")} == {database.name}
    assert limits_of(best()) == (512, 128)


def test_without_another_budget_nothing_is_forecast(best: Best) -> None:
    assert "orecast" not in best().err


def test_a_trace_is_for_forecasts_under_another_budget(best: Best) -> None:
    ran = best("--trace", "demo:mixed")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: --trace needs --budget\nhint: ")


def test_what_is_exported_was_measured_and_what_is_forecast_says_so(best: Best) -> None:
    ran = best("--budget", "ttft_p95:150 itl_p99:60")
    assert limits_of(ran) == (2048, 128)
    assert "# simulated: cpu-tiny-llama\n" in ran.out
    assert "\nsimulating all 8 candidates, by the steps of " in ran.err
    line = ran.err.splitlines()[-1]
    assert line.startswith(
        "Forecast, not measured: 1024/128 may be better, and keeps the budget with "
    )
    assert "itl_p99 42.4 (" in line
    ran = best("--budget", "ttft_p95:500 itl_p99:60")
    assert ran.err.splitlines()[-1] == (
        "No candidate that was not measured is forecast to be better by much."
    )


def test_the_whole_verdict_is_told_before_what_is_forecast(best: Best) -> None:
    ran = best("--budget", LOOSER)
    lines = ran.err.splitlines()
    assert lines[0].startswith("No engine was run, ")
    assert lines[1].startswith("Keep what you have: ")
    assert lines[2].startswith("ttft_p95 is 1")
    assert "of 140.0 allowed" in lines[2]
    verdict_ends = next(n for n, line in enumerate(lines) if line.startswith("simulating"))
    assert any(line.startswith("Next: ") for line in lines[:verdict_ends])
    # Without another budget, autotune show tells it.
    assert len(best().err.splitlines()) == 2


def test_what_it_advises_is_about_this_budget(best: Best) -> None:
    err = best("--budget", "ttft_p95:500 itl_p99:60").err
    assert "the same command" not in err
    assert "--budget 'ttft_p95:500 itl_p99:60' " in err


def test_where_nothing_keeps_it_the_exit_code_says_so_and_the_hint_is_short(
    best: Best, tmp_path: Path
) -> None:
    output = tmp_path / "serve.yaml"
    ran = best("--budget", BETWEEN, "--output", str(output))
    assert (ran.code, ran.out) == (3, "")
    *reasons, forecast, error, hint = ran.err.splitlines()
    assert error == "error: Nothing keeps the budget."
    assert hint.startswith(
        f"hint: the same autotune tune with --budget '{BETWEEN}' and --trials raised by 8, "
    )
    assert len(hint) < 350
    assert forecast.startswith(
        "None that was measured keeps it; by forecast 1024/128 may, with a probability of "
    )
    assert "itl_p99 42.4 (" in forecast
    assert reasons[1].startswith("Nearest is ")
    assert not output.exists()


def test_what_cannot_run_is_not_proposed(
    database: Path, tmp_path: Path, autotune: Autotune
) -> None:
    path = tmp_path / "failed.db"
    path.write_bytes(database.read_bytes())
    failed = json.dumps({TOKENS: 1024, SEQS: 128})
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE autotune_trial SET state = 'infeasible', failure_class = 'oom_start', "
            "candidate = ?, metrics = NULL, intervals = NULL, engine = NULL WHERE number = 3",
            (failed,),
        )
    arguments = ("best", "--storage", f"sqlite:///{path}", "--budget")
    ran = autotune(*arguments, BETWEEN)
    assert ran.code == 3
    assert "None that was measured keeps it" in ran.err
    assert "1024/128" not in ran.err
    ran = autotune(*arguments, "ttft_p95:150 itl_p99:60")
    assert ran.code == 0
    assert "1024/128" not in ran.err


def test_where_hardly_any_other_would_either_it_says_so(best: Best) -> None:
    ran = best("--budget", "ttft_p95:1")
    assert ran.code == 3
    assert "and by forecast hardly any would; " in ran.err
    assert "with a probability of less than 1 %: " in ran.err
    # To go on by these limits is not all that helps.
    *_, hint = ran.err.splitlines()
    assert " Or with --budget 'ttft_p95:" in hint
    assert hint.endswith("Or lighten the load, or give the model more hardware.")


def test_what_a_search_would_not_try_is_not_proposed(
    best: Best, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Foresight, "next", None)
    ran = best("--budget", BETWEEN)
    assert ran.code == 3
    assert "keeps it, and no other is forecast to be worth a trial.\n" in ran.err
    assert "1024/128" not in ran.err
    ran = best("--budget", "ttft_p95:150 itl_p99:60")
    assert ran.err.splitlines()[-1] == (
        "No candidate that was not measured is forecast to be better by much."
    )


def test_where_nothing_can_be_forecast_it_says_what_to_run(best: Best) -> None:
    ran = best("--budget", BETWEEN, "--trace", "none.jsonl")
    assert ran.code == 3
    *_, forecast, _, hint = ran.err.splitlines()
    assert forecast.startswith("No forecasts of other candidates: none.jsonl")
    assert f"autotune tune with --budget '{BETWEEN}' and --trials raised by 8, " in hint


def test_what_was_only_measured_live_is_not_exported(best: Best) -> None:
    ran = best("--budget", "ttft_p95:9999 itl_p99:20")
    assert (ran.code, ran.out) == (3, "")
    assert "\nerror: Not converged: 256/128 is the best so far" in ran.err


def test_json_is_judged_by_it(best: Best) -> None:
    ran = best("--budget", LOOSER, "--format", "json")
    found = json.loads(ran.out)
    assert found["provenance"]["budget"] == LOOSER
    assert found["verdict"]["simulated"] == "cpu-tiny-llama"


@pytest.mark.parametrize(
    ("budget", "error"), [("ttft", "'ttft'"), ("ttft_p95@long:9", "long"), ("x_p95:9", "'x'")]
)
def test_a_budget_that_cannot_be_meant(best: Best, budget: str, error: str) -> None:
    ran = best("--budget", budget)
    assert (ran.code, ran.out) == (2, "")
    assert error in ran.err


def test_where_nothing_can_be_forecast_it_says_why_and_judges_all_the_same(
    best: Best, studies: str, autotune: Autotune
) -> None:
    ran = best("--budget", LOOSER, "--trace", "none.jsonl")
    assert limits_of(ran) == (2048, 128)
    assert ran.err.splitlines()[-1].startswith("No forecasts of other candidates: none.jsonl")
    ran = autotune(
        "best", "--storage", studies, "--study-name", "knee", "--budget", "ttft_p95:9999"
    )
    assert ran.code == 0
    assert "No forecasts of other candidates: small.jsonl" in ran.err
