from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engine.failures import classify_run, classify_start, lacks_memory, read_tail
from autotune.engine.protocol import Failure

CORE = "(EngineCore pid=20344) ERROR 11-30 04:00:14 [core.py:1510] "
START_FAILED = (
    "RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {'EngineCore': 1}"
)
DEAD = (
    "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."
)

# Written by vLLM 0.32 on a CPU with kv_cache_memory_bytes=1048576 and max_model_len=8192.
NO_KV_ROOM = (
    "ValueError: To serve at least one request with the model's max seq len (8192), (0.01 GiB KV "
    "cache is needed, which is larger than the available KV cache memory (0.0 GiB). Based on the "
    "available memory, the estimated maximum model length is 896. Try increasing "
    "`gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or decreasing "
    "`max_model_len` when initializing the engine. See "
    "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
)
NO_KV_ROOM_LOG = f"""\
Triton is installed, but doesn't include CPU backend. Disabling Triton.
venv/vllm/triton_utils/dispatcher.py:138: FutureWarning: `torch.distributed.reduce_op` is \
deprecated, please use `torch.distributed.ReduceOp` instead
(Worker pid=20383) WARNING 11-30 04:00:14 [cpu_worker.py:114] libiomp is not found in LD_PRELOAD.
(Worker pid=20383) INFO 11-30 04:00:14 [cpu_worker.py:260] Explicitly set (0.0/8.09) GiB for KV \
cache on node 0.
{CORE}EngineCore failed to start.
{CORE}Traceback (most recent call last):
{CORE}  File "venv/vllm/v1/core/kv_cache_utils.py", line 1030, in _check_enough_kv_cache_memory
{CORE}    raise ValueError(
{CORE}{NO_KV_ROOM}
(EngineCore pid=20344) ERROR 11-30 04:00:17 [multiproc_executor.py:315] Worker proc VllmWorker-0 \
died unexpectedly (exit code: None), shutting down executor.
Process EngineCore:
Traceback (most recent call last):
    raise ValueError(
{NO_KV_ROOM}
"""

# The exceptions of vLLM 0.32's configuration, as the host writes them.
BAD_PAIR = """\
ValidationError: 1 validation error for SchedulerConfig
  Value error, max_num_batched_tokens (16) must be greater than or equal to max_num_seqs (64). \
[type=value_error, input_value=ArgsKwargs((), {'runner_t..., 'stream_interval': 1}), \
input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error"""
TWO_FIELDS = """\
ValidationError: 2 validation errors for SchedulerConfig
max_num_batched_tokens
  Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0, \
input_type=int]
    For further information visit https://errors.pydantic.dev/2.14/v/greater_than_equal
max_num_seqs
  Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0, \
input_type=int]
    For further information visit https://errors.pydantic.dev/2.14/v/greater_than_equal"""
UNSUPPORTED = """\
ValidationError: 1 validation error for ModelConfig
  Value error, Model architectures ['NoSuchModelForCausalLM'] are not supported for now. \
Supported architectures: dict_keys(['AfmoeForCausalLM', 'ApertusForCausalLM']) \
[type=value_error, input_value=ArgsKwargs((), {'model': '...}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error"""
MISSING_FOLDER = (
    "HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
    "'/nowhere/at-all'. Use `repo_type` argument if needed."
)
MISSING_REPOSITORY = (
    "LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the specified "
    "revision on the local disk and outgoing traffic has been disabled. To enable repo look-ups "
    "and downloads online, pass 'local_files_only=False' as input."
)
CUDA_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total "
    "capacity of 23.65 GiB of which 10.06 MiB is free."
)


def test_a_cache_too_small_for_one_request() -> None:
    failure = classify_start(NO_KV_ROOM_LOG, START_FAILED)
    assert failure == Failure("no_kv_room", NO_KV_ROOM[:400])


@pytest.mark.parametrize(
    ("message", "evidence"),
    [
        (
            BAD_PAIR,
            "max_num_batched_tokens (16) must be greater than or equal to max_num_seqs (64).",
        ),
        (TWO_FIELDS, "max_num_batched_tokens: Input should be greater than or equal to 1"),
        (
            UNSUPPORTED,
            (
                "Model architectures ['NoSuchModelForCausalLM'] are not supported for now. "
                "Supported architectures: dict_keys(['AfmoeForCausalLM', 'ApertusForCausalLM'])"
            ),
        ),
        (
            "ValidationError: 1 validation error for CacheConfig",
            "ValidationError: 1 validation error for CacheConfig",
        ),
    ],
)
def test_a_refused_argument_is_shown_in_vllms_words(message: str, evidence: str) -> None:
    log = "Triton is installed, but doesn't include CPU backend. Disabling Triton.\n"
    assert classify_start(log, message) == Failure("refused_argument", evidence)


def test_a_refusal_in_the_engines_log_is_found_behind_its_prefixes() -> None:
    log = "".join(f"{CORE}{line}\n" for line in BAD_PAIR.removeprefix("Val").splitlines())
    failure = classify_start(log, START_FAILED)
    assert failure.failure_class == "refused_argument"
    assert failure.evidence.startswith("max_num_batched_tokens (16) must be")


@pytest.mark.parametrize("message", [MISSING_FOLDER, MISSING_REPOSITORY])
def test_a_missing_model_is_unknown_and_shown(message: str) -> None:
    assert classify_start("", message) == Failure("unknown", message)


@pytest.mark.parametrize(
    "line",
    [
        CUDA_OOM,
        (
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy "
            "requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization`."
        ),
        "OSError: [Errno 12] Cannot allocate memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "torch.distributed.DistBackendError: Failed to CUDA calloc async 608 bytes",
    ],
)
def test_memory_that_ran_out_during_the_start(line: str) -> None:
    log = f"{CORE}{line}\n{CORE}EngineCore failed to start.\n"
    assert classify_start(log, START_FAILED) == Failure("oom_start", line)


def test_the_list_of_arguments_is_no_cause() -> None:
    log = f"{CORE}non-default args: {{'model': 'm'}}\n{CORE}the engine ends\n"
    assert classify_run(log, "ended") == Failure("engine_dead", "ended")


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: Free memory on device cuda:0 (2.1/23.65 GiB) on startup is less than desired",
        "ValueError: Available memory on node 0 (3.1/62.8 GiB) on startup is less than desired",
    ],
)
def test_memory_that_somebody_else_holds_is_no_fault_of_the_candidate(line: str) -> None:
    failure = classify_start(f"{CORE}{line}\n", START_FAILED)
    assert failure == Failure("unknown", line)
    assert not failure.deterministic
    assert lacks_memory(failure)


def test_no_memory_left_for_the_cache() -> None:
    line = "ValueError: No available memory for the cache blocks. Try increasing it."
    assert classify_start(f"{CORE}{line}\n", START_FAILED) == Failure("no_kv_room", line)


@pytest.mark.parametrize("consequence_first", [False, True])
def test_out_of_memory_wins_over_its_consequences(consequence_first: bool) -> None:
    lines = [f"{CORE}{CUDA_OOM}", f"{CORE}AssertionError: 1 validation error for CacheConfig"]
    log = "\n".join(reversed(lines) if consequence_first else lines)
    assert classify_start(log, START_FAILED) == Failure("oom_start", CUDA_OOM)
    assert classify_run(log, DEAD) == Failure("oom_run", CUDA_OOM)


def test_an_engine_that_dies_shows_its_own_error_and_not_what_followed() -> None:
    log = f"""\
{CORE}EngineCore encountered a fatal error.
{CORE}Traceback (most recent call last):
{CORE}    raise IndexError("block 7 is out of range")
{CORE}IndexError: block 7 is out of range
(EngineCore pid=1) ERROR 11-30 04:00:17 [core.py:9] {DEAD}
"""
    expected = Failure("engine_dead", "IndexError: block 7 is out of range")
    assert classify_run(log, DEAD) == expected
    assert classify_start(log, START_FAILED) == Failure("unknown", expected.evidence)


def test_an_engine_that_dies_without_a_word_is_shown_by_the_exception() -> None:
    assert classify_run("(Worker pid=7) INFO 11-30 04:00:14 [a.py:1] Fine.\n", DEAD) == Failure(
        "engine_dead", DEAD
    )
    ended = "the engine host ended by SIGKILL during replay"
    assert classify_run("", ended) == Failure("engine_dead", ended)


KILLED = ("EngineCore ended by SIGKILL",)
LOST = "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."


def test_how_a_process_ended_says_more_than_what_followed_and_less_than_its_own_error() -> None:
    followed = f"{CORE}{DEAD}\n"
    assert classify_run(followed, DEAD, ended=KILLED) == Failure("engine_dead", KILLED[0])
    assert classify_start("", START_FAILED, ended=KILLED) == Failure("unknown", KILLED[0])
    own = f"{CORE}IndexError: block 7 is out of range\n{followed}"
    assert classify_run(own, DEAD, ended=KILLED).evidence == "IndexError: block 7 is out of range"


def test_a_worker_that_ends_without_a_word_is_named() -> None:
    log = f"{CORE}{LOST}\n{CORE}{DEAD}\n"
    ended = ("EngineCore ended with status 1",)
    assert classify_run(log, DEAD, ended=ended) == Failure("engine_dead", LOST)


def test_evidence_is_one_short_line() -> None:
    failure = classify_run("", "ValueError: " + "x" * 10_000 + "\nmore")
    assert failure.evidence == ("ValueError: " + "x" * 10_000)[:400]
    assert classify_run("", "two\nlines").evidence == "two"
    assert classify_run("", "").evidence == ""


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "trial.log"
    assert read_tail(log) == ""
    log.write_bytes(b"a" * 300_000 + b"\xff the end")
    tail = read_tail(log)
    assert len(tail) == 256 * 1024
    assert tail.endswith("a\N{REPLACEMENT CHARACTER} the end")


def test_a_tail_begins_where_it_is_told_to(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("start: out of memory\n")
    said = log.stat().st_size
    assert read_tail(log, after=said) == ""
    with log.open("a") as file:
        file.write("then it died\n")
    assert read_tail(log, after=said) == "then it died\n"
    assert read_tail(log).startswith("start")
