"""Mutates valid input of every parser that reads a user's text; see scripts/fuzz.

A parser may accept what it gets, or raise one of its documented errors with a message of some
length. Any other exception, an input that takes longer than ten seconds and one that needs
more than 2 GiB are failures.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import secrets
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.candidates.lattice import Tiles
from autotune.demo import resolve_trace
from autotune.errors import AutotuneError, TraceError, UsageError
from autotune.settings import TuneSettings, load_settings, parse_engine_args, parse_knobs
from autotune.study.session import log_folder
from autotune.traffic.fit import fitted
from autotune.traffic.formats.base import NO_OPTIONS, ReadOptions
from autotune.traffic.formats.native import meta_path
from autotune.traffic.inspect import describe
from autotune.traffic.picture import picture
from autotune.traffic.scenarios import adjusted, scenario_named
from autotune.traffic.trace import load_trace, save_trace
from autotune.traffic.window import parse_window
from objectives.classes import parse_classes
from objectives.errors import ObjectiveError
from objectives.limits import parse_budget
from storage.database import parse_url
from storage.errors import StorageError
from tests.autotune.traffic.formats.logs import LOGS, options_of

LONGEST_S = 10
MOST_BYTES = 2 * 2**30
LONGEST_MESSAGE = 1000
REQUIRED = {"model": "m", "trace": "t.jsonl"}
ROW = (
    b'{"timestamp": 12.5, "input_length": 600, "output_length": 5, "hash_ids": [1, 2], '
    b'"max_tokens": 9, "priority": -1, "cached_tokens": 0, "model": "llama"}\n'
)
AZURE_2023 = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
BURSTGPT = b"Timestamp,Model,Request tokens,Response tokens\n5,GPT-4,374,44\n6.5,GPT-4,1,0\n"
AZURE_2025 = (
    b"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\r\n"
    b"2024-10-15T12:00:00.269Z,0,770,491\r\n2024-05-10 00:00:01+00:00,1,949,126\r\n"
)
CONFIG = (
    b"model: demo:tiny-llama\ntrace: demo:mixed\nwindow: busiest:10m\nbudget: ttft_p95:800\n"
    b"classes: short:0-2000 long:2000-\ntoo-long: skip\nengine_args: &a\n  max-model-len: 16384\n"
    b"  seed: 1.5e3\nknobs:\n  block_size: [16, 32]\ntile: 128,8\ntrials: 24\nwarmup_s: 10.0\n"
    b"study_name: night\nlog_folder: logs\n"
)
TOKENS = (
    *(b"-1", b"0", b"1e999", b"NaN", b"Infinity", b"9" * 30, b"1" + b"0" * 5000, b"0x1F", b"1_0"),
    *(b"\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xc2\x85", b"\xe2\x80\xae", b"\x1b[2J"),
    *(b"{", b"}", b"[" * 300, b"]", b'"', b"'", b",", b":", b"=", b"@", b"#", b"-", b"*a", b"&a"),
    *(b"null", b"true", b"~", b"!!python/object:os.system", b"!!binary |", b"? ", b"<<: *a", b"%"),
    *(b"../", b"\xed\xa0\x80", b"\\ud800", b"p95", b"busiest:", b"2024-02-30", b"sqlite:///"),
)


class Hang(BaseException):
    """An input took too long; nobody catches this by mistake."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parser with valid inputs and the errors that it documents."""

    name: str
    seeds: Sequence[bytes]
    parse: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """What should not have come out, and of what."""

    target: str
    content: bytes
    told: str


def seeds_of(name: str, lines: bytes) -> list[bytes]:
    """Return logs to begin with; vLLM's benchmark writes a file for each result."""
    return [lines] if name == "vllm-bench" else [lines, lines * 2]


def logs() -> Iterator[tuple[str, bytes, ReadOptions]]:
    """Yield name, lines and options of the logs that readers are tested with."""
    for name in sorted(LOGS.keys() - {"native"}):
        lines = b"".join(json.dumps(row).encode() + b"\n" for row in LOGS[name])
        # Forms without times need a rate; what else they object to is a TraceError.
        yield name, lines, options_of(name)


def targets(folder: Path) -> list[Target]:
    """Return all parsers; files are written into ``folder``."""
    path = folder / "a.jsonl"
    path.write_bytes(ROW)
    save_trace(load_trace(path), path)
    row, meta = path.read_bytes(), meta_path(path).read_bytes()
    meta_path(path).unlink()
    demo = load_trace(resolve_trace("demo:mixed"))
    lengths = scenario_named("mixed").chat.prompt

    def trace_file(name: str, options: ReadOptions = NO_OPTIONS) -> Callable[[bytes], object]:
        def parse(content: bytes) -> object:
            path.write_bytes(content)
            trace = load_trace(path, format=name, options=options)
            return picture(trace, describe(trace)), fitted(trace, 2048, "truncate")

        return parse

    def description(content: bytes) -> object:
        path.write_bytes(row)
        meta_path(path).write_bytes(content)
        try:
            return load_trace(path)
        finally:
            meta_path(path).unlink()

    def config(content: bytes) -> object:
        file = folder / "autotune.yaml"
        file.write_bytes(content)
        return load_settings(file, {})

    def settings(**given: object) -> TuneSettings:
        return load_settings(None, {**REQUIRED, **given})

    def words(parse: Callable[[str], object]) -> Callable[[bytes], object]:
        # As the command line hands over what is no UTF-8.
        return lambda content: parse(content.decode("utf-8", errors="surrogateescape"))

    trace, usage, objective = (TraceError,), (UsageError,), (ObjectiveError,)
    return [
        Target("trace auto", [ROW, AZURE_2023], trace_file("auto"), trace),
        Target("trace native", [ROW, ROW * 3], trace_file("native"), trace),
        Target("trace mooncake", [ROW, ROW * 3], trace_file("mooncake"), trace),
        Target("trace azure", [AZURE_2023, AZURE_2025], trace_file("azure"), trace),
        Target("trace burstgpt", [BURSTGPT], trace_file("burstgpt"), trace),
        *(
            Target(f"trace {name}", seeds_of(name, lines), trace_file(name, options), trace)
            for name, lines, options in logs()
        ),
        Target("trace description", [meta], description, trace),
        Target("config", [CONFIG], config, usage),
        Target(
            "engine argument",
            [b"max_model_len=8192", b"compilation-config={level: 3, x: [1, a]}"],
            words(lambda text: settings(engine_args=parse_engine_args([text]))),
            usage,
        ),
        Target(
            "knob",
            [b"max_num_seqs=64,128", b"long-prefill-token-threshold=0,512,1024", b"x=a,true,1.5"],
            words(lambda text: settings(knobs=parse_knobs([text]))),
            usage,
        ),
        Target(
            "budget",
            [b"ttft_p95:800 tpot_p95:40 itl_p99@short:60", b"ttft_p95:0.9x,e2e_mean:2000"],
            words(parse_budget),
            objective,
        ),
        Target("classes", [b"short:0-2000 long:2000-"], words(parse_classes), objective),
        Target(
            "window",
            [b"5:20", b"0m:1h", b"busiest:10s", b"busiest:0.5m"],
            words(lambda text: parse_window(text).apply(demo)),
            usage,
        ),
        Target("tile", [b"128,8", b"256"], words(Tiles.parse), usage),
        Target(
            "lengths",
            [b"median=200,sigma=0.6,min=60,max=600"],
            words(lambda text: adjusted(lengths, text)),
            usage,
        ),
        Target(
            "study name",
            [b"night", b"../../etc", "夜 🌙".encode()],
            words(lambda text: log_folder(settings(study_name=text), text)),
            usage,
        ),
        Target(
            "database URL",
            [b"sqlite:///a.db", b"postgresql+psycopg://u:p%40ss@host:5432/db?sslmode=require"],
            words(parse_url),
            (StorageError,),
        ),
    ]


def mutated(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return a seed after a few small accidents, mostly one."""
    content = rng.choice(seeds)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        start = rng.randint(0, len(content))
        end = min(len(content), start + rng.choice((0, 1, 1, 2, 5, 20)))
        new = rng.choice(
            (
                b"",
                bytes([rng.randrange(256)]),
                rng.choice(TOKENS),
                content[start:end] * rng.randint(2, 50),
                rng.choice(seeds)[: rng.randint(0, 200)],
            )
        )
        content = content[:start] + new + content[end:]
    return content


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise Hang where the block takes longer."""

    def ring(_number: int, _frame: object) -> None:
        raise Hang(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def tried(target: Target, content: bytes) -> Failure | str:
    """Return ``accepted`` or ``refused``, or the failure."""
    try:
        with limited(LONGEST_S):
            target.parse(content)
    except target.errors as error:
        told = unfit(error, content)
        return Failure(target.name, content, told) if told else "refused"
    except (Exception, Hang):  # noqa: BLE001  # To find these is the purpose.
        return Failure(target.name, content, traceback.format_exc())
    return "accepted"


def unfit(error: Exception, content: bytes) -> str:
    """Say why an error is nothing to show a user, '' if it is fit."""
    if not isinstance(error, AutotuneError | ObjectiveError | StorageError):
        return f"{type(error).__name__} has no message of ours"
    # What was typed may be quoted, in escapes of up to ten characters and more than once.
    longest = LONGEST_MESSAGE + 30 * len(content)
    if not 0 < len(error.message) + len(error.hint) <= longest:
        return f"a message of {len(error.message)} characters: {error.message[:200]!r}"
    return ""


def fuzz(
    chosen: Sequence[Target], *, seconds: float, seed: int, clock: Callable[[], float]
) -> tuple[Counter[tuple[str, str]], Failure | None]:
    """Try inputs until ``seconds`` are over or one fails; return counts and the failure."""
    rng = random.Random(seed)  # noqa: S311  # No secret is made of it.
    counts: Counter[tuple[str, str]] = Counter()
    end = clock() + seconds
    while clock() < end:
        for target in chosen:
            outcome = tried(target, mutated(rng, target.seeds))
            if isinstance(outcome, Failure):
                return counts, outcome
            counts[target.name, outcome] += 1
    return counts, None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=60.0)
    parser.add_argument("seed", nargs="?", type=int, default=secrets.randbelow(2**31))
    given = parser.parse_args(arguments)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, hard))
    with tempfile.TemporaryDirectory() as folder:
        chosen = targets(Path(folder))
        counts, failure = fuzz(
            chosen, seconds=given.seconds, seed=given.seed, clock=time.monotonic
        )
    for target in chosen:
        accepted, refused = (counts[target.name, each] for each in ("accepted", "refused"))
        print(f"{target.name:20} {accepted:>9,} accepted {refused:>9,} refused")
    print(f"{sum(counts.values()):,} inputs, seed {given.seed}")
    if failure is None:
        return 0
    saved = Path(f"fuzz-{failure.target.replace(' ', '-')}-{given.seed}.input")
    saved.write_bytes(failure.content)
    print(f"{failure.told}\n{failure.target}: failed; the input is in {saved}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
