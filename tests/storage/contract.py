"""What a repository promises on any database: subclass with a ``url`` fixture of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pytest

from storage.database import open_database
from storage.errors import FingerprintMismatch, StorageError, UnknownStudy, UnknownTrial
from storage.records import Outcome, StudyRecord, TrialFailure
from storage.repository import Repository, open_repository
from tests.storage.events import events_of, kinds_of

START: Final = datetime(2026, 11, 1, 22, 0, tzinfo=UTC)
CANDIDATE: Final = {"max_num_batched_tokens": 4096, "max_num_seqs": 128}
DONE: Final = Outcome("complete", (812.5, math.inf), {"ttft_p95": 0.016, "failed": 0.0})
ODD_NAMES: Final = [
    'it\'s "night"; DROP TABLE autotune_study; --',
    "../../etc/passwd",
    "100%_\\",
    "夜間 チューニング 🌙",
    " leading and trailing ",
    "<img src=x onerror=alert(1)>",
    "x" * 1000,
    "🌙" * 1000,
]


def begin(repository: Repository, study_id: int, number: int = 0, **changes: Any) -> None:
    fields = {"phase": "search", "fidelity": "restart", "candidate": CANDIDATE, **changes}
    repository.begin_trial(study_id, number, **fields)


def finish(repository: Repository, study_id: int, number: int = 0, **changes: Any) -> None:
    fields = {"state": "complete", "outcome": DONE, **changes}
    repository.finish_trial(study_id, number, **fields)


class RepositoryContract:
    @pytest.fixture
    def repository(self, url: str) -> Iterator[Repository]:
        self.now = START
        with Repository(open_database(url), clock=self.tick) as opened:
            yield opened

    @pytest.fixture
    def study(self, repository: Repository) -> StudyRecord:
        return repository.open_study("night", fingerprint={"model": "a"}, spec={"budget": ""})

    def tick(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now

    # Studies

    def test_a_new_study(self, repository: Repository, study: StudyRecord, url: str) -> None:
        assert study == StudyRecord(
            id=study.id,
            name="night",
            created_at="2026-11-01T22:00:01.000000+00:00",
            updated_at="2026-11-01T22:00:01.000000+00:00",
            fingerprint={"model": "a"},
            spec={"budget": ""},
            state="running",
            verdict=None,
        )
        assert repository.study("night") == study
        assert kinds_of(url, study.id) == ["started"]

    def test_resuming_takes_the_new_spec(
        self, repository: Repository, study: StudyRecord, url: str
    ) -> None:
        repository.set_state(study.id, "interrupted")
        again = repository.open_study("night", fingerprint={"model": "a"}, spec={"budget": "x"})
        assert (again.id, again.state, again.spec) == (study.id, "running", {"budget": "x"})
        assert again.updated_at > study.updated_at
        assert kinds_of(url, study.id) == ["started", "resumed"]

    def test_a_verdict_stays_as_long_as_the_spec(
        self, repository: Repository, study: StudyRecord
    ) -> None:
        repository.set_verdict(study.id, {"kind": "knee", "regret_high": math.inf})
        same = repository.open_study("night", fingerprint={"model": "a"}, spec={"budget": ""})
        assert same.verdict == {"kind": "knee", "regret_high": math.inf}
        other = repository.open_study("night", fingerprint={"model": "a"}, spec={"budget": "x"})
        assert other.verdict is None

    def test_another_fingerprint_is_refused_with_a_diff(
        self, repository: Repository, study: StudyRecord
    ) -> None:
        before = repository.study(study.name)
        with pytest.raises(FingerprintMismatch) as caught:
            repository.open_study("night", fingerprint={"model": "b", "tile": 8}, spec={})
        assert caught.value.diff == [("model", "a", "b"), ("tile", None, 8)]
        assert repository.study("night") == before

    def test_a_fingerprint_is_compared_as_stored(self, repository: Repository) -> None:
        fingerprint = {"ladder": (128, np.int64(256)), "limit": math.inf}
        first = repository.open_study("night", fingerprint=fingerprint, spec={})
        assert repository.open_study("night", fingerprint=fingerprint, spec={}).id == first.id

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_names_are_kept_verbatim(self, repository: Repository, name: str) -> None:
        created = repository.open_study(name, fingerprint={}, spec={})
        assert created.name == name
        assert repository.study(name).id == created.id
        assert [summary.name for summary in repository.studies()] == [name]

    @pytest.mark.parametrize("name", ["", "x" * 1001, "a\0b", "\ud800"])
    def test_names_that_cannot_be_stored(self, repository: Repository, name: str) -> None:
        with pytest.raises(StorageError, match="name"):
            repository.open_study(name, fingerprint={}, spec={})
        assert repository.studies() == ()

    @pytest.mark.parametrize("name", ["a\0b", "night\udcff"])
    def test_they_are_refused_alike_by_readers(self, repository: Repository, name: str) -> None:
        with pytest.raises(StorageError) as written:
            repository.open_study(name, fingerprint={}, spec={})
        with pytest.raises(StorageError) as read:
            repository.study(name)
        assert type(read.value) is type(written.value)
        assert (read.value.message, read.value.hint) == (written.value.message, written.value.hint)

    def test_without_a_name_the_latest_study(
        self, repository: Repository, study: StudyRecord
    ) -> None:
        other = repository.open_study("other", fingerprint={}, spec={})
        assert repository.study(None).id == other.id
        begin(repository, study.id)
        assert repository.study(None).id == study.id

    def test_no_study(self, repository: Repository) -> None:
        with pytest.raises(UnknownStudy, match="no study yet"):
            repository.study(None)

    def test_an_unknown_study(self, repository: Repository, study: StudyRecord) -> None:
        with pytest.raises(UnknownStudy, match="'nigth'") as caught:
            repository.study("nigth")
        assert repr(study.name) in caught.value.hint

    def test_summaries_count_trials_by_state(
        self, repository: Repository, study: StudyRecord
    ) -> None:
        for number in range(3):
            begin(repository, study.id, number)
        finish(repository, study.id, 0)
        finish(repository, study.id, 1)
        repository.open_study("empty", fingerprint={}, spec={})
        empty, night = repository.studies()
        assert (empty.name, empty.trials) == ("empty", {})
        assert (night.name, night.trials) == ("night", {"complete": 2, "running": 1})

    def test_spec_and_state_can_be_replaced(
        self, repository: Repository, study: StudyRecord
    ) -> None:
        repository.update_spec(study.id, {"trials": 40})
        repository.set_state(study.id, "finished")
        stored = repository.study("night")
        assert (stored.spec, stored.state) == ({"trials": 40}, "finished")

    def test_a_study_that_does_not_exist_is_not_written(self, repository: Repository) -> None:
        with pytest.raises(StorageError):
            repository.set_state(7, "finished")
        with pytest.raises(StorageError):
            begin(repository, 7)

    # Trials

    def test_a_running_trial(self, repository: Repository, study: StudyRecord) -> None:
        begin(repository, study.id, 4, replicate_of=2, log_path="/logs/4.log")
        record = repository.trial(study.id, 4)
        assert record.state == "running"
        assert record.candidate == CANDIDATE
        assert (record.replicate_of, record.log_path) == (2, "/logs/4.log")
        assert record.started_at == "2026-11-01T22:00:03.000000+00:00"
        assert (record.finished_at, record.metrics, record.outcome) == (None, None, None)
        assert repository.untold(study.id) == ()

    def test_a_finished_trial_comes_back_whole(
        self, repository: Repository, study: StudyRecord
    ) -> None:
        begin(repository, study.id)
        finish(
            repository,
            study.id,
            timings={"start_s": 41.5, "stop_s": None},
            metrics={"ttft_p95": 812.5, "itl_p99": None, "e2e_max": math.inf},
            intervals={"ttft_p95": [790.0, math.inf]},
            engine={"kv_tokens": 2**40, "versions": {"vllm": "0.32.0"}},
            diagnosis={"codes": ["budget_bound"]},
            samples={"ttft_ms": np.array([1.0, np.inf]), "rows": np.arange(3)},
        )
        record = repository.trial(study.id, 0)
        assert record.timings == {"start_s": 41.5, "stop_s": None}
        assert record.metrics == {"ttft_p95": 812.5, "itl_p99": None, "e2e_max": math.inf}
        assert record.intervals == {"ttft_p95": [790.0, math.inf]}
        assert record.engine == {"kv_tokens": 2**40, "versions": {"vllm": "0.32.0"}}
        assert record.diagnosis == {"codes": ["budget_bound"]}
        assert (record.outcome, record.told) == (DONE, False)
        assert record.finished_at is not None
        stored = repository.samples(study.id, 0)
        assert list(stored) == ["rows", "ttft_ms"]
        np.testing.assert_array_equal(stored["ttft_ms"], [1.0, np.inf])

    def test_a_failed_trial_keeps_its_evidence(
        self, repository: Repository, study: StudyRecord
    ) -> None:
        begin(repository, study.id)
        failure = TrialFailure("oom_start", "CUDA out of memory\0 \udcff")
        finish(repository, study.id, state="failed", outcome=Outcome("fail"), failure=failure)
        record = repository.trial(study.id, 0)
        assert (record.state, record.failure_class) == ("failed", "oom_start")
        assert record.failure_evidence == "CUDA out of memory\ufffd ?"

    def test_finishing_twice_is_harmless(self, repository: Repository, study: StudyRecord) -> None:
        content: dict[str, Any] = {
            "metrics": {"ttft_p95": 1.0},
            "samples": {"a": np.arange(9)},
        }
        begin(repository, study.id)
        finish(repository, study.id, **content)
        repository.mark_told(study.id, 0)
        before = repository.trial(study.id, 0)
        finish(repository, study.id, **content)
        assert repository.trial(study.id, 0) == before

    @pytest.mark.parametrize(
        "other",
        [
            {"metrics": {"ttft_p95": 2.0}},
            {"samples": {"a": np.arange(8)}},
            {"outcome": Outcome("fail"), "state": "failed"},
        ],
    )
    def test_a_finished_measurement_is_never_overwritten(
        self, repository: Repository, study: StudyRecord, other: dict[str, Any]
    ) -> None:
        begin(repository, study.id)
        finish(repository, study.id, metrics={"ttft_p95": 1.0}, samples={"a": np.arange(9)})
        before = repository.trial(study.id, 0)
        content = {"metrics": {"ttft_p95": 1.0}, "samples": {"a": np.arange(9)}, **other}
        with pytest.raises(StorageError, match="complete already"):
            finish(repository, study.id, **content)
        assert repository.trial(study.id, 0) == before
        assert len(repository.samples(study.id, 0)["a"]) == 9

    def test_nan_is_refused_and_nothing_is_written(
        self, repository: Repository, study: StudyRecord
    ) -> None:
        begin(repository, study.id)
        with pytest.raises(StorageError, match=r"metrics\.ttft_p95 is not a number"):
            finish(repository, study.id, metrics={"ttft_p95": math.nan})
        assert repository.trial(study.id, 0).state == "running"

    def test_a_number_is_taken_once(self, repository: Repository, study: StudyRecord) -> None:
        begin(repository, study.id)
        with pytest.raises(StorageError, match="refused a record"):
            begin(repository, study.id, candidate={"max_num_seqs": 1})
        assert repository.trial(study.id, 0).candidate == CANDIDATE

    def test_an_unknown_trial(self, repository: Repository, study: StudyRecord) -> None:
        for call in (repository.trial, repository.mark_told):
            with pytest.raises(UnknownTrial, match="no trial 9"):
                call(study.id, 9)
        with pytest.raises(UnknownTrial):
            finish(repository, study.id, 9)
        assert repository.samples(study.id, 9) == {}

    def test_trials_are_in_order_and_apart_by_study(
        self, repository: Repository, study: StudyRecord
    ) -> None:
        other = repository.open_study("other", fingerprint={}, spec={})
        for number in (2, 0, 1):
            begin(repository, study.id, number)
        begin(repository, other.id, 0)
        assert [record.number for record in repository.trials(study.id)] == [0, 1, 2]
        assert [record.number for record in repository.trials(other.id)] == [0]

    def test_telling(self, repository: Repository, study: StudyRecord) -> None:
        for number in range(3):
            begin(repository, study.id, number)
        with pytest.raises(StorageError, match="no outcome"):
            repository.mark_told(study.id, 0)
        finish(repository, study.id, 1)
        finish(repository, study.id, 0)
        assert [record.number for record in repository.untold(study.id)] == [0, 1]
        repository.mark_told(study.id, 0)
        repository.mark_told(study.id, 0)
        assert [record.number for record in repository.untold(study.id)] == [1]

    def test_judging_again_replaces_what_a_budget_decides(
        self, repository: Repository, study: StudyRecord, url: str
    ) -> None:
        begin(repository, study.id)
        late = TrialFailure("client_bound", "9 ms late")
        finish(
            repository,
            study.id,
            state="invalid",
            outcome=Outcome("fail", judged_by="ttft_p95:20"),
            metrics={"ttft_p95": 1.0},
            intervals={"ttft_p95": [0.5, None]},
            timings={"start_s": 3.0},
            engine={"busy_s": 4.0},
            diagnosis={"code": "balanced"},
            failure=late,
            samples={"a": np.arange(3)},
        )
        repository.mark_told(study.id, 0)
        before = repository.trial(study.id, 0)
        outcome = replace(DONE, judged_by="ttft_p95:800")
        repository.rejudge_trial(
            study.id,
            0,
            state="complete",
            outcome=outcome,
            metrics={"ttft_p95": 1.0, "itl_p99@short": 2.0},
            intervals={"itl_p99@short": [1.0, None]},
        )
        assert repository.trial(study.id, 0) == replace(
            before,
            state="complete",
            outcome=outcome,
            metrics={"ttft_p95": 1.0, "itl_p99@short": 2.0},
            intervals={"itl_p99@short": [1.0, None]},
            failure_class=None,
            failure_evidence=None,
            told=False,
        )
        assert list(repository.samples(study.id, 0)) == ["a"]
        detail = {"number": 0, "state": "complete", "judged_by": "ttft_p95:800"}
        assert events_of(url, study.id)[-1] == ("rejudged", detail)

    def test_only_finished_trials_are_judged_again(
        self, repository: Repository, study: StudyRecord
    ) -> None:
        begin(repository, study.id)
        with pytest.raises(StorageError, match="0 still runs"):
            repository.rejudge_trial(study.id, 0, state="complete", outcome=DONE)
        with pytest.raises(UnknownTrial):
            repository.rejudge_trial(study.id, 1, state="complete", outcome=DONE)
        assert repository.trial(study.id, 0).state == "running"

    def test_running_trials_become_interrupted_once(
        self, repository: Repository, study: StudyRecord
    ) -> None:
        for number in range(3):
            begin(repository, study.id, number)
        finish(repository, study.id, 1)
        assert repository.interrupt_running(study.id) == (0, 2)
        assert repository.interrupt_running(study.id) == ()
        record = repository.trial(study.id, 2)
        assert (record.state, record.outcome) == ("interrupted", Outcome("fail"))
        assert [record.number for record in repository.untold(study.id)] == [0, 1, 2]

    def test_events_keep_their_order_and_detail(
        self, repository: Repository, study: StudyRecord, url: str
    ) -> None:
        repository.add_event(study.id, "drift", {"share": 0.07})
        repository.add_event(study.id, "paused")
        assert events_of(url, study.id)[1:] == [("drift", {"share": 0.07}), ("paused", {})]

    def test_all_is_there_after_reopening(
        self, repository: Repository, study: StudyRecord, url: str
    ) -> None:
        begin(repository, study.id)
        finish(repository, study.id, samples={"a": np.arange(3)})
        with open_repository(url, create=False) as other:
            assert other.study(None) == replace(study, updated_at=other.study(None).updated_at)
            assert other.trials(study.id) == repository.trials(study.id)
            np.testing.assert_array_equal(other.samples(study.id, 0)["a"], [0, 1, 2])
