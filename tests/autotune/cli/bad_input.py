"""Every bad input that has a documented answer, as data: what is given, and what is said.

``test_bad_input`` runs them, and ``scripts/make_bad_input_table`` writes what they answered into
docs/bad-input.md.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Setup = Callable[[Path, Path], object]
"""Makes files in a folder; the second path is a database with the studies knee, slow and new."""

MODEL = ("--model", "demo:tiny-llama")
TUNE = ("tune", *MODEL, "--trace", "demo:mixed")
NESTED = ("&l0 [1]", *(f"&l{n} [*l{n - 1}]" for n in range(1, 3000)))
SMALL = ("--engine-arg", "load_format=dummy", "--engine-arg", "enforce_eager=true")


@dataclass(frozen=True, slots=True)
class Case:
    """One input, and what the command must answer.

    Attributes:
        what: is wrong with it, as the first column of the table says it.
        command: after ``autotune``, run in a folder of its own.
        code: exit code; 0 for an input that is odd and can be used.
        error: part of the line of that name; of any line on stderr if the code is 0.
        hint: part of the line of that name.
        setup: makes the files.
        environ: environment variables.
        vllm: whether vLLM is asked, which takes seconds; no engine starts in any case.
    """

    what: str
    command: tuple[str, ...]
    code: int
    error: str
    hint: str = ""
    setup: Setup = lambda _folder, _studies: None
    environ: Mapping[str, str] = field(default_factory=dict)
    vllm: bool = False


def request(**changes: Any) -> str:
    """Return a line of a trace; a field of None is left out."""
    row = {"timestamp": 0, "input_length": 10, "output_length": 5, **changes}
    return json.dumps({name: value for name, value in row.items() if value is not None})


def trace_of(*lines: str | bytes) -> Setup:
    """Write the lines as t.jsonl."""
    raw = [line if isinstance(line, bytes) else line.encode() for line in lines]
    return lambda folder, _: (folder / "t.jsonl").write_bytes(b"".join(r + b"\n" for r in raw))


def file_of(name: str, content: str | bytes) -> Setup:
    raw = content if isinstance(content, bytes) else content.encode()

    def write(folder: Path, _studies: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)

    return write


def pipe_of(name: str) -> Setup:
    """Make a pipe that nobody writes or reads."""
    return lambda folder, _: os.mkfifo(folder / name)


def with_studies(*statements: str, cut_at: int | None = None) -> Setup:
    """Copy the studies to autotune.db, change them by SQL, or cut the file off."""

    def copy(folder: Path, studies: Path) -> None:
        path = folder / "autotune.db"
        shutil.copy(studies, path)
        with closing(sqlite3.connect(path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)
        path.write_bytes(path.read_bytes()[:cut_at])

    return copy


def database_of(*statements: str) -> Setup:
    """Make another program's autotune.db."""

    def make(folder: Path, _studies: Path) -> None:
        with closing(sqlite3.connect(folder / "autotune.db")) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    return make


def model_of(config: Mapping[str, Any] | None) -> Setup:
    """Make the folder ``model``, with or without a config.json."""
    if config is None:
        return lambda folder, _: (folder / "model").mkdir()
    return file_of("model/config.json", json.dumps(config))


INSPECT = ("trace", "inspect", "t.jsonl")

TRACES = (
    Case("a trace that is not there", INSPECT, 2, "No such file", "trace"),
    Case("an empty trace", INSPECT, 2, "t.jsonl: the file is empty", "demo:mixed", trace_of()),
    Case("a folder in place of a trace", ("trace", "inspect", "."), 2, ".", "file"),
    Case(
        "a line that is cut off",
        INSPECT, 2, "t.jsonl:2: invalid JSON", "cut off", trace_of(request(), request()[:20]),
    ),
    Case(
        "a line that is not UTF-8", INSPECT, 2, "t.jsonl:2: not UTF-8", "UTF-8",
        trace_of(request(), b"{\xff}"),
    ),
    Case("a line that is no object", INSPECT, 2, "t.jsonl:1", "known are", trace_of("[1, 2]")),
    Case(
        "a compressed trace",
        ("trace", "inspect", "t.jsonl.gz"), 2, "t.jsonl.gz", "gunzip",
        file_of("t.jsonl.gz", gzip.compress(request().encode(), mtime=0)),
    ),
    Case(
        "a missing field", INSPECT, 2, "output_length: field required", "from 1",
        trace_of(request(output_length=None))
    ),
    Case(
        "a misspelt field",
        INSPECT, 2, "t.jsonl:1: unknown field 'input_len'", "did you mean 'input_length'?",
        trace_of(request(input_length=None, input_len=10)),
    ),
    Case(
        "a negative length", INSPECT, 2, "t.jsonl:1: input_length", "from 1",
        trace_of(request(input_length=-1)),
    ),
    Case(
        "a length of zero", INSPECT, 2, "t.jsonl:1: output_length", "from 1",
        trace_of(request(output_length=0)),
    ),
    Case(
        "a length that is a text", INSPECT, 2, "t.jsonl:1: input_length", "without quotes",
        trace_of(request(input_length="ten")),
    ),
    Case(
        "an absurd length", INSPECT, 2, "t.jsonl:1: input_length", "to 10000000",
        trace_of(request(input_length=10**12)),

    ),
    Case(
        "a negative time", INSPECT, 2, "t.jsonl:1: timestamp", "from 0",
        trace_of(request(timestamp=-5)),
    ),
    Case(
        "a time that is no number", INSPECT, 2, "t.jsonl:1: timestamp", "a number from 0",
        trace_of(request(timestamp=float("nan"))),
    ),
    Case(
        "times in seconds since 1970", INSPECT, 2, "t.jsonl", "1000",
        trace_of(request(timestamp=1_700_000_000), request(timestamp=1_700_000_001)),
    ),
    Case(
        "rows out of order",
        INSPECT, 0, "Rows out of order", "", trace_of(request(timestamp=9), request(timestamp=3)),
    ),
    Case(
        "requests at the same time",
        INSPECT, 0, "", "", trace_of(request(timestamp=3), request(timestamp=3)),
    ),
    Case("a trace of one request", INSPECT, 0, "", "", trace_of(request())),
    Case(
        "a misspelt demo trace", ("trace", "inspect", "demo:mixd"), 2,
        "no demo trace 'demo:mixd'", "demo:mixed",
    ),
    Case(
        "a window that is none", ("trace", "window", "demo:mixed", "w.jsonl", "--window", "soon"),
        2, "'soon' is no window", "busiest:10m",
    ),
    Case(
        "a name that no trace may have", ("trace", "import", "demo:mixed", "t.txt"), 2,
        "does not end in .jsonl", "write to t.txt.jsonl",
    ),
    Case(
        "fields by other names", INSPECT, 2, "unknown field 'time'",
        "rename time to timestamp (in ms), prompt_tokens to input_length",
        trace_of('{"time": 1.5, "prompt_tokens": 7, "completion_tokens": 9}'),
    ),
    Case(
        "times that may be seconds", INSPECT, 0, "multiply times in seconds by 1000", "",
        trace_of(request(timestamp=0.5), request(timestamp=600)),
    ),
    Case(
        "hash ids in some rows only", INSPECT, 0, "taken to share nothing: 1", "",
        trace_of(request(hash_ids=[1]), request()),
    ),
    Case(
        "a window without a request",
        ("trace", "window", "demo:mixed", "w.jsonl", "--window", "900:910"),
        2, "no request between 900 s and 910 s",
        "the trace ends at",
    ),
    Case(
        "a place where no trace can be written",
        ("trace", "import", "demo:mixed", "none/t.jsonl"), 2, "there is no folder none",
        "a folder that you may write",
    ),
    Case(
        "a bad trace for a file that is there",
        ("trace", "import", "t.jsonl", "t.jsonl"), 2, "t.jsonl:2: ", "cut off",
        trace_of(request(), "{"),
    ),
    Case(
        "synthetic traffic without a rate",
        ("trace", "synth", "s.jsonl", "--scenario", "mixed", "--rate", "0", "--duration", "9"),
        2, "the rate is 0", "trace synth --help",
    ),
    Case(
        "lengths whose median is beyond their end",
        (
            "trace", "synth", "s.jsonl", "--scenario", "mixed", "--rate", "1", "--duration", "9",
            "--chat-prompt", "median=20000",
        ),
        2, "--chat-prompt: no distribution", "give max as well",
    ),
    Case(
        "lengths of documents where there are none",
        (
            "trace", "synth", "s.jsonl", "--scenario", "short_chat", "--rate", "1",
            "--duration", "9", "--document-prompt", "max=9000",
        ),
        2, "has no documents", "--scenario mixed",
    ),
    Case(
        "a column that Azure's traces do not have",
        ("trace", "inspect", "a.csv"), 2, "a.csv:1: ", "did you mean 'GeneratedTokens'?",
        file_of("a.csv", "TIMESTAMP,ContextTokens,Generated\n2024-05-10 00:00:00,5,5\n"),
    ),
)  # fmt: skip

BUDGETS = (
    Case(
        "a misspelt metric", (*TUNE, "--budget", "ttfd_p95:800"), 2,
        "unknown metric 'ttfd'", "did you mean 'ttft'?",
    ),
    Case("an unknown aggregate", (*TUNE, "--budget", "ttft_p59:800"), 2, "'p59'", "'p99'"),
    Case(
        "a limit that is no number", (*TUNE, "--budget", "ttft_p95:fast"), 2, "'fast'",
        "as in 'ttft_p95:800'",
    ),
    Case("an unknown unit", (*TUNE, "--budget", "ttft_p95:800h"), 2, "unit 'h'", "use ms"),
    Case(
        "a limit of zero", (*TUNE, "--budget", "ttft_p95:0"), 2, "positive",
        "leave the line out",
    ),
    Case(
        "a limit given twice", (*TUNE, "--budget", "ttft_p95:800 ttft_p95:900"), 2,
        "limits ttft_p95 twice", "keep the stricter",
    ),
    Case(
        "a class that does not exist",
        (*TUNE, "--budget", "itl_p99@chat:60", "--classes", "chats:0-2000 long:2000-"), 2,
        "no class 'chat'", "did you mean 'chats'?",
    ),
    Case(
        "classes that overlap", (*TUNE, "--classes", "short:0-2001 long:2000-"), 2,
        "overlap", "short:0-2000",
    ),
    Case(
        "a budget that nothing keeps", ("best", "--study-name", "slow"), 3,
        "Nothing keeps the budget.", "Nearest is ", with_studies(),
    ),
    Case(
        "a budget that nothing keeps, to a file that is there",
        ("best", "--study-name", "slow", "--output", "autotune.db"), 3,
        "Nothing keeps the budget.", "Nearest is ", with_studies(),
    ),
    Case(
        "a study without a finished trial", ("best", "--study-name", "new"), 2,
        "no finished trial yet", "autotune trials", with_studies(),
    ),
)  # fmt: skip

OPTIONS = (
    Case("a misspelt command", ("tuen",), 2, "No such command 'tuen'", "autotune --help"),
    Case(
        "a misspelt option", (*TUNE, "--trails", "5"), 2,
        "No such option: --trails", "did you mean '--trials'?",
    ),
    Case(
        "an engine argument as an option", (*TUNE, "--max-model-len", "8192"), 2,
        "No such option: --max-model-len", "write --engine-arg max_model_len=VALUE",
    ),
    Case(
        "an engine argument in two words",
        (*TUNE, "--engine-arg", "max_model_len", "8192"), 2,
        "unexpected extra argument", "--engine-arg max_model_len=8192",
    ),
    Case(
        "a model without its option", ("tune", "demo:tiny-llama"), 2,
        "unexpected extra argument", "--model demo:tiny-llama",
    ),
    Case(
        "an argument with a name", ("show", "--trial", "3"), 2,
        "No such option: --trial", "autotune show TRIAL",
    ),
    Case(
        "engine arguments that are no pairs", (*TUNE, "--config", "c.yaml"), 2,
        "--engine-arg: must be `name: value` pairs", "--help",
        file_of("c.yaml", "engine_args: [max_model_len]\n"),
    ),
    Case(
        "a limit of no sequences", (*TUNE, "--engine-arg", "max_num_seqs=0"), 2,
        "max_num_seqs takes whole numbers from 1", "--help",
    ),
    Case(
        "a model folder that is not there", ("doctor", "./none"), 4,
        "there is no folder ./none", "check the path",
    ),
    Case("a number that is none", (*TUNE, "--trials", "many"), 2, "'--trials'", "tune --help"),
    Case("a number out of range", (*TUNE, "--trials", "0"), 2, "--trials", "tune --help"),
    Case("an option without its value", ("best", "--format"), 2, "'--format'", "--help"),
    Case("a form that does not exist", ("best", "--format", "xml"), 2, "'xml'", "best --help"),
    Case("no model", ("tune", "--trace", "demo:mixed"), 2, "--model is missing", "--config"),
    Case(
        "no such configuration file", ("tune", "--config", "none.yaml"), 2,
        "cannot read none.yaml", "--config",
    ),
    Case(
        "a pipe in place of a configuration file", ("tune", "--config", "pipe"), 2,
        "cannot read pipe: is no regular file", "--config", pipe_of("pipe"),
    ),
    Case(
        "a device in place of a configuration file", ("tune", "--config", "/dev/zero"), 2,
        "cannot read /dev/zero: is no regular file", "--config",
    ),
    Case(
        "a configuration file that is no YAML", ("tune", "--config", "c.yaml"), 2,
        "c.yaml is no valid YAML: line 2", "name: value", file_of("c.yaml", "model: [x\n"),
    ),
    Case(
        "a misspelt setting", (*TUNE, "--config", "c.yaml"), 2,
        "unknown setting 'trails'", "did you mean 'trials'?", file_of("c.yaml", "trails: 5\n"),
    ),
    Case(
        "an engine argument without a value", (*TUNE, "--engine-arg", "enforce_eager"), 2,
        "'enforce_eager' is not key=value", "--engine-arg max_model_len=8192",
    ),
    Case(
        "an engine argument that is ours", (*TUNE, "--engine-arg", "model=x"), 2,
        "model cannot be set", "--help",
    ),
    Case(
        "a knob without plain values", (*TUNE, "--knob", "max_num_seqs=[8"),
        2, "--knob max_num_seqs", "values are YAML",
    ),
    Case(
        "more candidates than can be looked at",
        (*TUNE, *(f"--knob={name}={','.join(map(str, range(60)))}" for name in "abcd")), 2,
        "the knobs make 1.296e+07 candidates", "fewer values",
    ),
    Case(
        "aliases of aliases, 3,000 deep", (*TUNE, "--config", "c.yaml"), 2,
        "nested more than 50 deep", "an alias",
        file_of("c.yaml", f"junk: [{', '.join(NESTED)}]\nengine_args: {{x: *l2999}}\n"),
    ),
    Case(
        "a control character in a path", (*TUNE, "--config", "c.yaml"), 2,
        "c.yaml: --log-folder: must be without control", "tune --help",
        file_of("c.yaml", 'log_folder: "a\\0b"\n'),
    ),
    Case(
        "a control character in a database's URL", (*TUNE, "--config", "c.yaml"), 2,
        "c.yaml: --storage: must be without control", "tune --help",
        file_of("c.yaml", 'storage: "sqlite:///a\\0b.db"\n'),
    ),
    Case("a tile that is none", (*TUNE, "--tile", "0,8"), 2, "--tile '0,8'", "--tile 128,8"),
    Case(
        "a number of no trial", ("show", "99"), 2, "no trial 99", "autotune trials",
        with_studies(),
    ),
    Case("a trial that is no number", ("show", "first"), 2, "'trial'", "show --help"),
    Case(
        "a misspelt demo model", ("doctor", "demo:tiny-lama"), 2, "no demo model 'demo:tiny-lama'",
        "did you mean 'demo:tiny-llama'?",
    ),
    Case(
        "an engine argument that cannot be meant",
        ("doctor", "demo:tiny-llama", "--engine-arg", "tensor_parallel_size=0"), 2,
        "--engine-arg tensor_parallel_size: 0 is no whole number from 1", "vLLM's own value",
    ),
    Case(
        "a window without a trace", ("doctor", "demo:tiny-llama", "--window", "0:9"), 2,
        "--window needs a --trace", "trace",
    ),
    Case(
        "an output file in no folder",
        ("best", "--output", "none/serve.yaml"), 2, "there is no folder none",
        "a folder that you may write",
        with_studies(),
    ),
    Case(
        "an output file in no folder, before an engine starts",
        ("replay", *MODEL, "--trace", "demo:mixed", "--output", "none/r.json"), 2,
        "there is no folder none", "make it first",
    ),
    Case(
        "a pipe in place of an output file",
        ("best", "--output", "pipe"), 2, "pipe: is no regular file", "name a file",
        pipe_of("pipe"),
    ),
    Case(
        "a pipe in place of an output file, before an engine starts",
        ("replay", *MODEL, "--trace", "demo:mixed", "--output", "pipe"), 2,
        "pipe: is no regular file", "name a file", pipe_of("pipe"),
    ),
    Case(
        "a pipe in place of a trace to write",
        ("trace", "import", "demo:mixed", "pipe"), 2, "pipe: is no regular file", "name a file",
        pipe_of("pipe"),
    ),
)  # fmt: skip

DATABASES = (
    Case("no database yet", ("best",), 4, "There is no study database", "autotune tune"),
    Case(
        "a URL that is none", (*TUNE, "--storage", "autotune.db"), 4, "no database URL",
        "sqlite:///autotune.db",
    ),
    Case(
        "a database of another kind", ("trials", "--storage", "mysql://me:hunter2@db/x"), 4,
        "kind 'mysql' are not supported: mysql://me:***@db/x", "postgresql+psycopg://",
    ),
    Case(
        "a driver that is not installed",
        (*TUNE, "--storage", "postgresql+nodriver://me:hunter2@[::1]:5432/x?sslpassword=hunter2"),
        4, "postgresql+nodriver://me:***@[::1]:5432/x?sslpassword=***", "pip install",
    ),
    Case(
        "a URL that is none, with a secret",
        ("studies", "--storage", "postgresql://me:hun/ter2@db:port/x?token=hunter2"), 4,
        "postgresql://me:***@db:port/x?token=***", "postgresql+psycopg://",
    ),
    Case(
        "a URL in the wrong place", ("best", "postgresql://me:hunter2@db/x"), 2,
        "postgresql://me:***@db/x", "best --help",
    ),
    Case(
        "a database in memory", (*TUNE, "--storage", "sqlite://"), 4,
        "not a plain file", "sqlite:///PATH",
    ),
    Case(
        "a database in no folder", (*TUNE, "--storage", "sqlite:///none/a.db"), 4,
        "is no folder", "Create the folder",
    ),
    Case(
        "a pipe in place of a database", TUNE, 4, "it is no regular file", "another file",
        pipe_of("autotune.db"),
    ),
    Case(
        "a pipe in place of a database, to read", ("best",), 4, "it is no regular file",
        "another file", pipe_of("autotune.db"),
    ),
    Case(
        "a file that is no database", TUNE, 4, "not a database", "another file",
        file_of("autotune.db", "a shopping list\n" * 100),
    ),
    Case(
        "a file that is no database, to read", ("best",), 4, "not a database", "another file",
        file_of("autotune.db", "a shopping list\n" * 100),
    ),
    Case(
        "a database that was cut off", ("trials",), 4, "malformed", "Restore it",
        with_studies(cut_at=5000),
    ),
    Case(
        "a database that was cut off, to tune on", TUNE, 4, "malformed", "Restore it",
        with_studies(cut_at=5000),
    ),
    Case(
        "a database of another program", TUNE, 4, "belongs to another program", "another file",
        database_of("CREATE TABLE bookmarks (url)"),
    ),
    Case(
        "a database of another program, to read", ("show",), 4,
        "holds no study of autotune", "autotune tune",
        database_of("CREATE TABLE bookmarks (url)"),
    ),
    Case(
        "a database of a later version", ("trials",), 4, "schema '9999'", "Upgrade",
        with_studies("UPDATE autotune_alembic_version SET version_num = '9999'"),
    ),
    Case(
        "a database of a later version, to tune on", TUNE, 4, "schema '9999'", "Upgrade",
        with_studies("UPDATE autotune_alembic_version SET version_num = '9999'"),
    ),
    Case(
        "a wrong database in the environment", TUNE, 4, "no database URL", "sqlite",
        environ={"AUTOTUNE_STORAGE": "nonsense"},
    ),
    Case(
        "a damaged sample", ("show", "--study-name", "knee"), 4, "is damaged", "Restore",
        with_studies("UPDATE autotune_sample SET data = x'00'"),
    ),
    Case(
        "an Optuna study of another program", (*TUNE, "--study-name", "knee"), 4,
        "belongs to another program", "another --study-name",
        with_studies(
            "DELETE FROM autotune_sample",
            "DELETE FROM autotune_event",
            "DELETE FROM autotune_trial",
            "DELETE FROM autotune_study",
            "DELETE FROM study_user_attributes",
        ),
    ),
    Case(
        "a folder for logs under a file", (*TUNE, "--log-folder", "t.jsonl/logs"), 4,
        "cannot write the log", "--log-folder", trace_of(request()),
    ),
)  # fmt: skip

NAMES = (
    Case(
        "a misspelt study", ("best", "--study-name", "knees"), 2, "no study named 'knees'",
        "Did you mean 'knee'?", with_studies(),
    ),
    Case("an empty name", (*TUNE, "--study-name", ""), 2, "--study-name", "tune --help"),
    Case("a name of blanks", (*TUNE, "--study-name", "   "), 2, "cannot be seen", "another"),
    Case("a name of two lines", (*TUNE, "--study-name", "a\nb"), 2, "'a\\nb'", "of one line"),
    Case(
        "a name of 1,001 characters", (*TUNE, "--study-name", "x" * 1001), 2, "1000",
        "tune --help",
    ),
    Case(
        "a name that drives the terminal, to read",
        ("show", "--study-name", "\x1b[31m\u202eeenk"), 2, "no study named", "studies",
        with_studies(),
    ),
    Case(
        "quotes, slashes and percent signs, to read",
        ("trials", "--study-name", "it's \"50 %\" of ../../etc"), 2, "no study named", "studies",
        with_studies(),
    ),
)  # fmt: skip

ENGINES = (
    Case(
        "a misspelt engine argument", (*TUNE, "--engine-arg", "max_modle_len=8192"), 2,
        "no engine argument 'max_modle_len'", "max_model_len,", vllm=True,
    ),
    Case(
        "a misspelt engine argument, to look at the plan",
        (*TUNE, "--dry-run", "--knob", "block_sise=16,32"), 2,
        "no engine argument 'block_sise'", "block_size,", vllm=True,
    ),
    Case(
        "a value that vLLM refuses", (*TUNE, *SMALL, "--engine-arg", "max_model_len=0"), 2,
        "vLLM refuses", "--engine-arg", vllm=True,
    ),
    Case(
        "a model folder without config.json",
        ("tune", "--model", "model", "--trace", "demo:mixed"), 4,
        "Invalid repository ID or local directory specified: 'model'", "config.json",
        model_of(None), vllm=True,
    ),
    Case(
        "a model of an unknown architecture",
        ("replay", "--model", "model", "--trace", "demo:mixed"), 4,
        "does not recognize this architecture", "an architecture that",
        model_of({"architectures": ["NoSuchForCausalLM"], "model_type": "nosuch"}), vllm=True,
    ),
    Case(
        "requests longer than max_model_len",
        (*TUNE, *SMALL, "--engine-arg", "max_model_len=1024"), 2,
        "requests are longer than the engine's max_model_len of 1024", "--too-long skip",
        vllm=True,
    ),
    Case(
        "no request that fits",
        (*TUNE, *SMALL, "--dry-run", "--too-long", "skip", "--engine-arg", "max_model_len=16"), 2,
        "no request fits into max_model_len 16", "max_model_len=", vllm=True,
    ),
    Case(
        "a tile that excludes every candidate", (*TUNE, *SMALL, "--tile", "1000000,8"), 2,
        "the tile leaves no value for max_num_batched_tokens", "smaller --tile", vllm=True,
    ),
)  # fmt: skip

CASES: Mapping[str, tuple[Case, ...]] = {
    "Traces": TRACES,
    "Budgets and classes": BUDGETS,
    "Options and settings": OPTIONS,
    "Databases": DATABASES,
    "Study names": NAMES,
    "Models and engine arguments": ENGINES,
}
