"""A small study on simulated engines, with eight candidates of which some are measured."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from autotune import lease, tuning
from autotune.candidates.lattice import SEQS, TOKENS
from storage.records import StudyRecord, TrialRecord
from tests.autotune.study.scripted import Notes, settings_of

KNOBS = {TOKENS: [256, 512, 1024, 2048], SEQS: [8, 128]}
NAME = "whatif"
BUDGET = "ttft_p95:500 itl_p99:60"


class Told(Notes):
    """A watcher that is also told of the study."""

    def opened(self, study: StudyRecord, trials: Sequence[TrialRecord]) -> None:
        self.said.append(f"opened {study.name} with {len(trials)} trials")


def run_simulated(folder: Path, **changes: Any) -> None:
    """Run a study of two seconds of the shipped trace, with its database in ``folder``."""
    settings = settings_of(
        **{
            "model": "tiny-llama",
            "engine": "sim:cpu-tiny-llama",
            "trace": "demo:mixed",
            "window": "0:2",
            "classes": "",
            "budget": BUDGET,
            "trials": 6,
            "knobs": KNOBS,
            "study_name": NAME,
            "storage": f"sqlite:///{folder / 'study.db'}",
            "log_folder": str(folder / "logs"),
            **changes,
        }
    )
    with patch.object(lease, "LOCKS", folder):
        tuning.run_study(settings, Told(), environ={})


@cache
def _database() -> bytes:
    with TemporaryDirectory() as folder:
        run_simulated(Path(folder))
        return (Path(folder) / "study.db").read_bytes()


def simulated_study(folder: Path) -> Path:
    """Put the database of the study into ``folder``; it is made once a process."""
    path = folder / "study.db"
    path.write_bytes(_database())
    return path
