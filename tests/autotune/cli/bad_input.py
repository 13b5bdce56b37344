"""Every bad input that has a documented answer, as data: what is given, and what is said.

``test_bad_input`` runs them, and ``scripts/make_bad_input_table`` writes what they answered into
docs/bad-input.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.autotune.cli.bad_cases import (
    MODEL,
    NESTED,
    SMALL,
    TUNE,
    Case,
    database_of,
    file_of,
    model_of,
    pipe_of,
    request,
    trace_of,
    with_studies,
)
from tests.autotune.cli.bad_traces import (
    BUDGETS,
    TRACES,
)

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
        "a limit that is no number, to calibrate",
        ("calibrate", *MODEL, "--engine-arg", "max_num_seqs=nan"), 2,
        "max_num_seqs takes whole numbers from 1", "autotune calibrate --help",
    ),
    Case("an empty model", ("calibrate", "--model", ""), 2, "must name a model", "--help"),
    Case(
        "an empty folder", ("calibrate", *MODEL, "--log-folder", ""), 2,
        "'--log-folder': must name a folder", "--help",
    ),
    Case(
        "a warm-up longer than a day", (*TUNE, "--warmup-s", "1e300"), 2,
        "--warmup-s: must be at most 86400", "--help",
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
        "a knob with an empty list", (*TUNE, "--knob", "cudagraph_capture_sizes=[1,2],[]"), 2,
        "cudagraph_capture_sizes takes lists of numbers or words", "for example --knob",
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
        "a load without a candidate", ("forecast", "--load", "2"), 2, "--load needs --candidate",
        "--candidate 2048/128",
    ),
    Case(
        "a candidate that is none", ("forecast", "--candidate", "2048x128"), 2,
        "--candidate '2048x128' is not tokens/seqs", "--candidate 2048/128",
    ),
    Case(
        "forecasts of a study whose trace has moved", ("forecast",), 2, "small.jsonl",
        "give it with --trace", with_studies(),
    ),
    Case(
        "another budget for a class that the study has not",
        ("best", "--budget", "ttft_p95@long:9"), 2, "long",
        "autotune tune with --classes", with_studies(),
    ),
    Case(
        "a trace for forecasts, and no budget to forecast by", ("best", "--trace", "t.jsonl"), 2,
        "--trace needs --budget", "needs no trace", with_studies(),
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
    # A place where not even root may.
    Case(
        "a database where nothing may be written", (*TUNE, "--storage", "sqlite:////proc/a.db"),
        4, "cannot make the lock", "must be writable",
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
        "the tile leaves no value for max_num_batched_tokens", "--tile 128,8", vllm=True,
    ),
    Case(
        "what keeps limits from being changed, to calibrate",
        ("calibrate", *MODEL, *SMALL, "--engine-arg", "enable_chunked_prefill=false"), 2,
        "step times cannot be measured: enable_chunked_prefill is false", "other arguments",
        vllm=True,
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
