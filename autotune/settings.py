"""What a tuning job is asked to do, from ``autotune.yaml`` and the command line."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from autotune.deadline_settings import DeadlineSettings
from autotune.endpoint_settings import EndpointSettings, Seconds, parse_endpoints
from autotune.errors import UsageError, in_plain_words
from autotune.storage_settings import StorageSettings
from autotune.supervision_settings import SupervisionSettings
from autotune.user_files import read_small
from autotune.watching_settings import WatchingSettings
from objectives.errors import nearest

Scalar = int | float | str | bool
Value = Scalar | tuple[Scalar, ...]
"""Of a knob; written as a list, and kept as one that can be compared and be a key."""
TooLong = Literal["error", "skip", "truncate"]
"""What becomes of requests longer than ``max_model_len``."""
Fidelity = Literal["auto", "restart"]
"""Whether the search may change limits on a running engine where vLLM allows it."""

_LIMITS = ("max_num_batched_tokens", "max_num_seqs")

_FILE_FORM = "write one `name: value` a line"
_LIST = "`autotune {} --help` lists the settings and their values"
_ENGINE_ARG_EXAMPLE = "for example --engine-arg max_model_len=8192"
_KNOB_EXAMPLE = "for example --knob long_prefill_token_threshold=0,512,1024"
_LIMIT_EXAMPLE = "for example --knob max_num_seqs=64,128,256"
_OPTIONS = {"engine_args": "--engine-arg", "knobs": "--knob"}
_MAX_LIMIT = 2**31 - 1
_SHOWN_CHARACTERS = 60
_MOST_VALUES = 10_000
_MOST_DEPTH = 50

AUTO = "auto"
"""As a load: the one at which the baseline is at the edge of the budget."""
_MOST_LOAD = 100

_PERCENTAGE = re.compile(r"(\d{1,2}(?:\.\d{1,3})?) ?%", re.ASCII)
_HELD_OUT = (1.0, 50.0)
"""Percent of a window, the least and the most."""

REAL = "vllm"
SIMULATED = "sim:"
"""Before the name or path of a profile where an engine is simulated."""

RESERVED_ARGUMENTS: Mapping[str, str] = {
    "model": "it has an option of its own, --model",
    "disable_log_stats": "measuring needs it as it is",
    "hf_token": "arguments are stored and exported; set HF_TOKEN in the environment",
}
"""Engine arguments that nobody may set here, with the reason."""


class TuneSettings(WatchingSettings, StorageSettings, SupervisionSettings, DeadlineSettings):
    """All settings of ``autotune tune``; the same names stand in ``autotune.yaml``.

    Attributes:
        model: path or hub name of the model, or ``demo:tiny-llama``.
        trace: trace file, or ``demo:mixed``.
        window: part of the trace, ``600:900`` or ``busiest:10m``; None for all of it.
        load: how many times the traffic of the window is replayed, such as 1.4 or 0.5; ``auto``
            to find where the baseline is at the edge of the budget; None for as it was recorded.
        holdout: share of the window's time, ``20%``, at its end, that nothing is chosen on and
            the winner is confirmed on; None for none.
        budget: latency limits in ms, ``ttft_p95:800 tpot_p95:40``; '' for none.
        classes: classes of prompt length, ``short:0-2000 long:2000-``; None to find them.
        too_long: what becomes of requests longer than the engine's ``max_model_len``.
        engine_args: vLLM engine arguments that hold for every candidate and for the export.
        knobs: further engine arguments to search, each with its values.
        tile: quanta of the two limits, tokens and sequences.
        trials: how many trials the study has in the end.
        fidelity: ``auto`` searches on a running engine where its limits can be changed, and
            confirms by restarts; ``restart`` starts an engine for every trial.
        calibrate: whether a new study first measures step times, from which its ladders are
            made and utilization is computed.
        warmup_s: seconds of the window that are replayed before each measured replay, again
            until step times stand still; the first time on an engine 30 s, if those are more.
            0 for no warm-up.
        seed: of prompts and sampler.
        storage: database URL; None for the default.
        study_name: None for a name made of model and trace.
        log_folder: where the engines' output goes.
        max_failures_in_a_row: of one class, after which the study is given up.
        engine: ``vllm``, or ``sim:PROFILE`` for a simulation of a measured engine, whose model
            need not be named.
        endpoints: servers that other commands of the same file name; a study uses none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    trace: str
    window: str | None = None
    load: float | Literal["auto"] | None = None
    holdout: str | None = None
    budget: str = ""
    classes: str | None = None
    too_long: TooLong = "error"
    engine_args: dict[str, Any] = Field(default_factory=dict)
    knobs: dict[str, list[Value]] = Field(default_factory=dict)
    tile: str = "128,8"
    trials: int = Field(default=24, ge=1, le=10_000)
    fidelity: Fidelity = "auto"
    calibrate: bool = True
    warmup_s: Seconds = Field(default=10.0, ge=0.0, le=86_400.0)
    seed: int = Field(default=0, ge=0, lt=2**31)
    storage: str | None = None
    study_name: str | None = Field(default=None, min_length=1, max_length=1000)
    log_folder: Path = Path("autotune-logs")
    max_failures_in_a_row: int = Field(default=5, ge=1)
    engine: str = REAL
    endpoints: dict[str, EndpointSettings] = Field(default_factory=dict)

    @property
    def simulated(self) -> bool:
        """Whether no engine runs."""
        return self.engine.startswith(SIMULATED)

    @model_validator(mode="before")
    @classmethod
    def _model_of_a_profile(cls, given: Any) -> Any:
        engine = given.get("engine") if isinstance(given, dict) else None
        if isinstance(engine, str) and engine.startswith(SIMULATED):
            name = Path(engine.removeprefix(SIMULATED)).name.removesuffix(".json")
            return {"model": SIMULATED + name, **given}
        return given

    @field_validator("engine")
    @classmethod
    def _an_engine(cls, engine: str) -> str:
        if engine != REAL and not (engine.startswith(SIMULATED) and engine[len(SIMULATED) :]):
            raise ValueError(f"must be {REAL}, or {SIMULATED} and a profile")
        return engine

    @field_validator("model")
    @classmethod
    def _a_model(cls, model: str) -> str:
        if not model.strip():
            raise ValueError("must name a model")
        return model

    @field_validator("log_folder", mode="before")
    @classmethod
    def _a_folder(cls, folder: object) -> object:
        # As a path it would be the current folder.
        if folder == "":
            raise ValueError("must name a folder; `.` is the current one")
        return folder

    @field_validator("model", "trace", "storage", "log_folder", "engine")
    @classmethod
    def _one_line(cls, place: str | Path | None) -> str | Path | None:
        # YAML's escapes can write what no file and no database has in its name.
        if any(unicodedata.category(each) == "Cc" for each in str(place)):
            raise ValueError("must be without control characters")
        return place

    @field_validator("load", mode="before")
    @classmethod
    def _a_load(cls, load: object) -> float | str | None:
        if load is None or load == AUTO:
            return None if load is None else AUTO
        try:
            factor = float(load) if isinstance(load, str | int | float) else math.nan
        except ValueError:
            factor = math.nan
        if isinstance(load, bool) or not 0 < factor <= _MOST_LOAD:
            raise ValueError(f"must be above 0 and at most {_MOST_LOAD}, or {AUTO} in a study")
        return factor

    @field_validator("holdout", mode="before")
    @classmethod
    def _a_share(cls, given: object) -> str | None:
        if given is None:
            return None
        found = _PERCENTAGE.fullmatch(given.strip()) if isinstance(given, str) else None
        least, most = _HELD_OUT
        if found is None or not least <= float(found[1]) <= most:
            raise ValueError(f"must be a percentage from {least:g}% to {most:g}%, such as 20%")
        return f"{float(found[1]):g}%"

    @field_validator("engine_args")
    @classmethod
    def _plain(cls, engine_args: dict[str, Any]) -> dict[str, Any]:
        # They travel to the engine host, and are exported, as JSON.
        for name, value in engine_args.items():
            if reason := RESERVED_ARGUMENTS.get(name):
                raise ValueError(f"{name} cannot be set: {reason}")
            # vLLM would complain of another argument than the one that is wrong.
            if name in _LIMITS and value is not None and not _is_limit(value):
                raise ValueError(f"{name} takes whole numbers from 1 to {_MAX_LIMIT}")
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name} has a value that JSON cannot hold") from error
        return engine_args

    @field_validator("engine_args", "knobs", mode="before")
    @classmethod
    def _underscores(cls, arguments: object) -> object:
        if not isinstance(arguments, dict):
            return arguments
        return {str(name).replace("-", "_"): value for name, value in arguments.items()}

    @field_validator("knobs")
    @classmethod
    def _values_given(cls, knobs: dict[str, list[Value]]) -> dict[str, list[Value]]:
        for name, values in knobs.items():
            if reason := RESERVED_ARGUMENTS.get(name):
                raise ValueError(f"knob {name} cannot be set: {reason}")
            if not values:
                raise ValueError(f"knob {name} has no values")
            if len({(type(value), value) for value in values}) < len(values):
                raise ValueError(f"knob {name} names a value twice")
            lists = [value for value in values if isinstance(value, tuple)]
            # No option of `vllm serve` takes them, so that they could not be exported.
            if any(not each or any(isinstance(v, bool) for v in each) for each in lists):
                raise ValueError(f"knob {name} takes lists of numbers or words, one at least")
            parts = [*(v for v in values if not isinstance(v, tuple)), *chain(*lists)]
            if any(isinstance(value, float) and not math.isfinite(value) for value in parts):
                raise ValueError(f"knob {name} has a value that is not a finite number")
            if any(isinstance(value, int) and abs(value) >= 2**63 for value in parts):
                raise ValueError(f"knob {name} has a value of more than 64 bits")
            if name in _LIMITS and not all(_is_limit(value) for value in values):
                raise ValueError(f"knob {name} takes whole numbers from 1 to {_MAX_LIMIT}")
        return knobs


def _is_limit(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_LIMIT


def load_settings(
    config: Path | None, flags: Mapping[str, Any], *, command: str = "tune"
) -> TuneSettings:
    """Merge a configuration file with command-line flags, which win where they are given.

    Args:
        config: a YAML file, or None.
        flags: settings by name; None means not given. Mappings are merged key by key.
        command: whose help a hint points to.

    Raises:
        UsageError: the file or a value cannot be used.
    """
    merged = _read(config) if config is not None else {}
    for name, value in flags.items():
        if value is None:
            continue
        if isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = {**merged[name], **value}
        else:
            merged[name] = value
    if "endpoints" in merged:
        merged["endpoints"] = parse_endpoints(merged["endpoints"], where=str(config))
    for name in merged:
        _refuse_broken_text(name, [name])
    for name, option in _OPTIONS.items():
        extent = _extent(merged.get(name))
        if extent.values > _MOST_VALUES:
            raise UsageError(
                f"{option}: more than {_MOST_VALUES} values",
                hint="write fewer; an alias of aliases counts as all that it stands for",
            )
        if extent.depth > _MOST_DEPTH:
            raise UsageError(
                f"{option}: a value is nested more than {_MOST_DEPTH} deep",
                hint="no engine argument is; an alias counts as what it stands for",
            )
        _refuse_broken_text(option, extent.texts)
    try:
        return TuneSettings(**merged)
    except ValidationError as error:
        raise _usage_error(error, config, flags, _LIST.format(command)) from error


def load_endpoints(config: Path) -> dict[str, EndpointSettings]:
    """Return the ``endpoints`` of a configuration file, whatever else it holds.

    Raises:
        UsageError: the file, or one of them, cannot be used.
    """
    return parse_endpoints(_read(config).get("endpoints"), where=str(config))


def _read(config: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(read_small(config))
    except OSError as error:
        raise UsageError(
            f"cannot read {config}: {error.strerror}", hint="name an existing file with --config"
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{config} is no valid YAML: {_reason(error)}", hint=_FILE_FORM
        ) from error
    if not isinstance(content, dict):
        raise UsageError(f"{config} does not hold settings", hint=_FILE_FORM)
    return {str(name).replace("-", "_"): value for name, value in content.items()}


@dataclass(frozen=True, slots=True)
class _Extent:
    """How much a value holds with YAML's aliases written out: values, levels, and its texts."""

    values: int
    depth: int
    texts: Sequence[str]


def _extent(value: object) -> _Extent:
    """Measure a value without recursion, which aliases of aliases could exhaust."""
    texts: list[str] = []
    begun: set[int] = set()
    measured: dict[int, tuple[int, int]] = {}
    # A list around the value, so that it need not be a container itself.
    top = [value]
    to_do: list[object] = [top]
    while to_do:
        current = to_do[-1]
        children = _children(current)
        if id(current) not in begun:
            begun.add(id(current))
            texts += [child for child in children if isinstance(child, str)]
            to_do += [c for c in children if isinstance(c, dict | list) and id(c) not in begun]
            continue
        to_do.pop()
        if id(current) not in measured:
            # An alias of what it stands in counts as one value; JSON refuses it later.
            inner = [measured.get(id(child), (1, 0)) for child in children]
            values, depth = (sum(v for v, _ in inner), max((d for _, d in inner), default=0))
            measured[id(current)] = 1 + values, 1 + depth
    values, depth = measured[id(top)]
    return _Extent(values - 1, depth - 1, texts)


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list) else []


def _refuse_broken_text(option: str, texts: Sequence[str]) -> None:
    """Arguments are exported as UTF-8, which a shell or YAML's escapes can leave."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"{option}: {text[:_SHOWN_CHARACTERS]!a} is no UTF-8",
                hint="write names and values in UTF-8",
            ) from error


def _usage_error(
    error: ValidationError, config: Path | None, flags: Mapping[str, Any], help_hint: str
) -> UsageError:
    first = error.errors()[0]
    name = str(first["loc"][0])
    option = _OPTIONS.get(name, "--" + name.replace("_", "-"))
    where = f"{config}: " if config is not None and flags.get(name) is None else ""
    if first["type"] == "extra_forbidden":
        return UsageError(
            f"{where}unknown setting {name!r}",
            hint=nearest(name, TuneSettings.model_fields) or help_hint,
        )
    if first["type"] == "missing":
        here = config is None and Path("autotune.yaml").is_file()
        way = "--config autotune.yaml" if here else f"put {name!r} into the --config file"
        return UsageError(f"{option} is missing", hint=f"give {option} or {way}")
    return UsageError(
        f"{where}{option}: {in_plain_words(first['msg'].removeprefix('Value error, '))}",
        hint=_LIMIT_EXAMPLE if name == "knobs" else help_hint,
    )


def parse_engine_args(items: Sequence[str]) -> dict[str, Any]:
    """Read ``key=value`` pairs, values as YAML, names with dashes or underscores.

    Raises:
        UsageError: a pair without ``=``, a value that is no YAML, or a name given twice.
    """
    return {
        name: _yaml(text, option="--engine-arg", name=name)
        for name, text in _pairs(items, option="--engine-arg", example=_ENGINE_ARG_EXAMPLE)
    }


def parse_knobs(items: Sequence[str]) -> dict[str, list[Value]]:
    """Read ``name=a,b,c`` with the values as YAML scalars, or as lists such as ``[1,2],[1,4]``.

    Raises:
        UsageError: a knob without values, or a value that is neither.
    """
    knobs: dict[str, list[Value]] = {}
    for name, text in _pairs(items, option="--knob", example=_KNOB_EXAMPLE):
        values = [_yaml(part, option="--knob", name=name) for part in _split(text)]
        parts = chain(*(value if isinstance(value, list) else [value] for value in values))
        if not all(isinstance(part, int | float | str | bool) for part in parts):
            raise UsageError(
                f"--knob {name}: {text!r} is not a list of plain values", hint=_KNOB_EXAMPLE
            )
        knobs[name] = [tuple(value) if isinstance(value, list) else value for value in values]
    return knobs


def _split(text: str) -> list[str]:
    """Split at commas, but at none within a value that begins with a bracket."""
    parts: list[str] = []
    begin = depth = 0
    for at, character in enumerate(text):
        if character == "[" and (depth or not text[begin:at].strip()):
            depth += 1
        elif character == "]" and depth:
            depth -= 1
        elif character == "," and not depth:
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]


def _pairs(items: Sequence[str], *, option: str, example: str) -> list[tuple[str, str]]:
    """Take ``name=text`` apart; names get underscores."""
    pairs: dict[str, str] = {}
    for item in items:
        name, separator, text = item.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if not separator or not name:
            raise UsageError(f"{option} {item!r} is not key=value", hint=example)
        if name in pairs:
            raise UsageError(f"{option} {name} is given twice", hint="keep one of them")
        pairs[name] = text
    return list(pairs.items())


def _yaml(text: str, *, option: str, name: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        rest = " …" if len(text) > _SHOWN_CHARACTERS else ""
        raise UsageError(
            f"{option} {name}: {text[:_SHOWN_CHARACTERS]!r}{rest} is no valid value",
            hint="values are YAML; quote what has brackets or colons",
        ) from error


def _reason(error: Exception) -> str:
    """Say in one line why YAML was refused; its own messages quote the file over several."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())
