from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.engine.serve import Gone
from autotune.errors import EnvironmentFault, UsageError
from autotune.export.document import Export
from autotune.settings import TuneSettings
from autotune.study.check import Checked
from autotune.study.check_export import Exported, of_export, read_export
from autotune.study.check_result import Served, compare
from autotune.study.check_serve import check_served
from autotune.traffic.trace import load_trace
from tests.autotune.engine.served import fake

pytestmark = pytest.mark.wire

REQUESTS = 6


class Told:
    """A follower who remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def progress(self, body: Mapping[str, Any]) -> None:
        """Nothing of it is asked for."""

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def settings(tmp_path: Path) -> TuneSettings:
    rows = [
        {
            "timestamp": 5 * row,
            "input_length": 36,
            "output_length": 4,
            "hash_ids": [1, 2, 10 + row],
        }
        for row in range(REQUESTS)
    ]
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return TuneSettings(
        model="tiny",
        trace=str(trace),
        warmup_s=0.0,
        budget="ttft_p95:60000",
        start_timeout_s=20.0,
        log_folder=tmp_path / "logs",
    )


def exported(settings: TuneSettings, folder: Path, *more: str) -> Exported:
    lines = [
        "# study: knee",
        f"# trace_sha256: {load_trace(Path(settings.trace)).sha256}",
        "# ttft_p50: 0.001, interval 0.0005 to 0.002",
        "# tpot_mean: 90000, interval 0 to unbounded",
        "# tokens_per_busy_s: 5",
        "model: tiny",
        "max-num-batched-tokens: 384",
        *more,
    ]
    path = folder / "serve.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_export(path)


def test_an_export_is_served_proved_compared_and_gone(
    settings: TuneSettings, tmp_path: Path
) -> None:
    told = Told()
    # The one line that vLLM's loader drops without a word.
    given = exported(settings, tmp_path, "enable-prefix-caching: false", "seed: 0")
    served = check_served(given, settings, told, command=fake())
    assert {each.name: each.state for each in served.proofs} == {
        "model": "in_force",
        "max_num_batched_tokens": "in_force",
        "enable_prefix_caching": "differs",
        "seed": "not_provable",
    }
    assert served.kv_cache_tokens == 65536
    assert served.measurement is not None
    assert served.measurement.requests == REQUESTS
    assert served.measurement.failed_requests == 0
    assert served.same_traffic
    assert served.kept
    assert {each.name: each.within for each in served.compared} == {
        "ttft_p50": False,
        "tpot_mean": True,
    }
    assert served.gone is not None
    assert served.gone.proved
    assert any("--config" in each and str(given.source) in each for each in told.said)
    against = Checked(given, (), served=served).against
    assert against == ("enable_prefix_caching: the file says False, the server runs with True",)
    json.dumps(Checked(given, (), served=served).to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("unheard-of: 3", "unrecognized arguments: --unheard-of 3"),
        ("max-num-seqs: null", "argument --max-num-seqs: invalid int value: 'None'"),
    ],
)
def test_a_file_that_vllm_refuses_does_not_apply(
    settings: TuneSettings, tmp_path: Path, line: str, said: str
) -> None:
    given = exported(settings, tmp_path, line)
    served = check_served(given, settings, Told(), command=fake())
    assert served.refusal is not None
    assert said in served.refusal
    assert Checked(given, (), served=served).against == (
        f"vLLM does not start with it: {served.refusal}",
    )
    assert served.gone is not None
    assert served.gone.proved


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("dies", "did not start: unknown: RuntimeError: no room for error: a planted cause"),
        ("mute", "gives no token"),
        ("fragile", "CUDA out of memory"),
    ],
)
def test_a_server_that_fails_is_told_by_its_own_log(
    settings: TuneSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    said: str,
) -> None:
    monkeypatch.setattr("autotune.engine.serve._EXIT_TIMEOUT_S", 0.5)
    with pytest.raises(EnvironmentFault) as caught:
        check_served(exported(settings, tmp_path), settings, Told(), command=fake(fault))
    assert said in caught.value.message
    assert "its log is" in caught.value.hint


def test_without_the_report_nothing_is_proved(settings: TuneSettings, tmp_path: Path) -> None:
    export = Export("tiny", {}, {"max_num_seqs": 24, "seed": 3}, provenance={})
    given = of_export(export, "study 'knee'")
    served = check_served(given, settings, Told(), command=fake("closed"))
    assert {each.state for each in served.proofs} == {"not_provable"}
    assert not served.same_traffic
    assert served.compared == ()
    # What is no file yet was written beside the log.
    assert served.log.with_name("serve.yaml").read_text(encoding="utf-8").endswith("seed: 3\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [("api-key: sk-planted", "api-key"), ("uds: /tmp/x", "uds"), ("model: ", "no model")],
)
def test_what_is_about_the_server_is_refused(
    settings: TuneSettings, tmp_path: Path, line: str, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_served(exported(settings, tmp_path, line), settings, Told(), command=("false",))
    assert said in caught.value.message
    assert "planted" not in caught.value.message + caught.value.hint


def test_what_http_adds_is_stated_as_difference_and_share(
    settings: TuneSettings, tmp_path: Path
) -> None:
    given = exported(settings, tmp_path)
    (found,) = compare(given, {"ttft_p50": 0.003, "tpot_mean": None, "itl_p99": 1.0})
    assert found.name == "ttft_p50"
    assert found.added == pytest.approx(0.002)
    assert found.ratio == pytest.approx(2.0)
    assert found.within is False
    assert compare(given, {"ttft_p50": float("inf")}) == ()


def test_a_budget_that_breaks_or_a_server_that_stays_is_against_it(tmp_path: Path) -> None:
    stays = Gone("ended by SIGKILL", 1.0, ("1 (a)",), (), ("1 (a)",), (), listens=False)
    served = Served(("vllm",), tmp_path, same_traffic=True, kept=False, gone=stays)
    given = of_export(Export("m", {}, {}, provenance={}), "study")
    assert Checked(given, (), served=served).against == (
        "served, it breaks the budget",
        "the server is not gone: 1 (a)",
    )
