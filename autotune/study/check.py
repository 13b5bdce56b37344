"""An export checked: whether it still applies, how traffic has moved, what serving it shows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from autotune.demo import resolve_trace
from autotune.errors import AutotuneError, UsageError
from autotune.settings import load_settings
from autotune.study.check_against import Side, Stored
from autotune.study.check_drift import Drifted, Flow, drift_between, drifted
from autotune.study.check_export import Exported
from autotune.study.check_here import NOWHERE, Here, Matter, matters_of
from autotune.study.check_result import Served
from autotune.study.session import read_traffic
from autotune.study.view import StudyView
from autotune.traffic.model import Trace
from autotune.traffic.trace import load_trace
from autotune.traffic.window import parse_window
from objectives.samples import RequestSamples

_BUSIEST = "busiest:"


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """What a check found.

    Attributes:
        exported: what was checked.
        matters: what it was measured with, against what is here.
        here: that.
        drift: of its traffic; () where that was not compared.
        served: what serving it showed; None where it was not served.
        sides: of what was stored before, and what it is now.
    """

    exported: Exported
    matters: tuple[Matter, ...]
    here: Here = NOWHERE
    drift: tuple[Drifted, ...] = ()
    served: Served | None = None
    sides: tuple[Side, ...] = ()

    @property
    def against(self) -> tuple[str, ...]:
        """Why it no longer applies; () if it does.

        An export that was served is judged by what that showed: it was measured anew.
        """
        if self.served is not None:
            return _against_served(self.served)
        found = [
            f"{each.name}: {each.sentence}" for each in self.matters if each.state == "differs"
        ]
        moved = [each.name for each in drifted(self.drift)]
        return (*found, *([f"traffic has moved: {', '.join(moved)}"] if moved else []))

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "export": self.exported.source,
            "study": self.exported.provenance.get("study"),
            "applies": not self.against,
            "against": list(self.against),
            "here": asdict(self.here),
            "matters": [asdict(each) for each in self.matters],
            "drift": [each.to_json() for each in self.drift],
            "served": None if self.served is None else self.served.to_json(),
            "sides": [asdict(each) for each in self.sides],
        }


def check_here(
    exported: Exported,
    here: Here,
    *,
    view: StudyView | None = None,
    samples: RequestSamples | None = None,
    trace: str | None = None,
    window: str | None = None,
) -> Checked:
    """Check an export without an engine.

    Args:
        exported: what is checked.
        here: what is here.
        view: its study, where that is at hand.
        samples: of the trial that it names, in the place of a trace that is not there.
        trace: traffic of now; None to leave traffic alone.
        window: part of it; None for that of the study where it can be found in any trace.

    Raises:
        UsageError: the trace cannot be read, or nothing is left to compare it with.
    """
    matters = matters_of(exported, here, view)
    if trace is None:
        return Checked(exported, matters, here)
    then = _then(exported, samples)
    return Checked(exported, matters, here, drift_between(then, _now(exported, trace, window)))


def stored_of(checked: Checked) -> Stored:
    """Return a check as what is laid beside an earlier result: as served, else as exported."""
    exported, here, served = checked.exported, checked.here, checked.served
    told = exported.provenance
    if served is None or served.measurement is None:
        names = ("vllm", "torch", "device", "kv_cache_tokens")
        return Stored(
            source=exported.source,
            facts={name: told.get(name) for name in names},
            metrics=exported.metrics,
            intervals=exported.intervals,
            arguments=exported.settings,
            resolved=False,
            traffic=told.get("trace_sha256"),
        )
    return Stored(
        source=exported.source,
        facts={
            "vllm": here.vllm,
            "torch": here.torch,
            "device": ", ".join(dict.fromkeys(here.devices)),
            "kv_cache_tokens": served.kv_cache_tokens,
        },
        metrics=served.measurement.metrics,
        intervals=served.intervals,
        arguments=served.resolved,
        resolved=True,
        traffic=served.traffic,
    )


def _then(exported: Exported, samples: RequestSamples | None) -> Flow:
    recorded = _recorded(exported)
    if recorded is not None:
        return Flow.of_trace(recorded)
    if samples is not None:
        return Flow.of_samples(samples)
    raise UsageError(
        f"the traffic of {exported.source} is not at hand: neither its trace "
        f"{exported.provenance.get('trace')} as it was, nor its study",
        hint="run it where the trace is, or name the study's database with --storage",
    )


def _recorded(exported: Exported) -> Trace | None:
    """Return the traffic that a study replayed, None where it is not there or is another now."""
    own = exported.traffic()
    if own["trace"] is None:
        return None
    with suppress(AutotuneError, OSError):
        trace = read_traffic(load_settings(None, own, command="check")).trace
        if trace.sha256 == exported.provenance.get("trace_sha256"):
            return trace
    return None


def _now(exported: Exported, name: str, window: str | None) -> Flow:
    trace = load_trace(resolve_trace(name))
    own = str(exported.provenance.get("window", ""))
    chosen = window if window is not None else own if own.startswith(_BUSIEST) else None
    return Flow.of_trace(trace if chosen is None else parse_window(chosen).apply(trace))


def _against_served(served: Served) -> tuple[str, ...]:
    found = []
    if served.refusal is not None:
        found.append(f"vLLM does not start with it: {served.refusal}")
    found += [
        f"{each.name}: the file says {each.wanted}, the server runs with {each.found}"
        for each in served.differing
    ]
    if served.same_traffic and served.kept is False:
        found.append("served, it breaks the budget")
    if served.gone is not None and not served.gone.proved:
        left = ", ".join(served.gone.left) or "something answers at its port"
        found.append(f"the server is not gone: {left}")
    return tuple(found)
