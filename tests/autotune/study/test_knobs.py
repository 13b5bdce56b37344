from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from autotune.candidates.lattice import SEQS, TOKENS
from autotune.engine.protocol import Failure, TrialFailed
from autotune.engine.supervisor import Description, Supervisor
from autotune.errors import UsageError
from autotune.study.job import Job
from autotune.study.knobs import Vllm as Asked
from autotune.study.knobs import check_knobs
from tests.autotune.engine.tiny import ENGINE_ARGS, ENVIRONMENT
from tests.autotune.study.scripted import BASELINE, DESCRIPTION, INFO, job_of

Args = Mapping[str, Any]
KNOB = "block_size"
REPORT = (
    "1 validation error for SchedulerConfig\n  Value error, {reason} "
    "[type=value_error, input_value=1]\n    For further information visit x"
)


@dataclass(slots=True)
class Vllm:
    """Refuses and resolves as it is told, and writes down what it was asked."""

    objects: Callable[[Args], str | None] = lambda _args: None
    resolves: Callable[[Args], Args] = lambda args: args
    asked: list[Args] = field(default_factory=list)

    def validate(self, engine_args: Args) -> tuple[str | None, tuple[str, ...]]:
        self.asked.append(engine_args)
        return self.objects(engine_args), ()

    def describe(self, engine_args: Args) -> Description:
        resolved = {**INFO.resolved, **self.resolves(engine_args)}
        return Description(replace(INFO, resolved=resolved), {})


def job_with(**knobs: list[Any]) -> Job:
    """A job whose baseline has 16 where a knob is no limit."""
    others = {name: 16 for name in knobs if name not in BASELINE}
    return job_of(knobs=knobs, engine_args=others, described=_described(others))


def _described(others: Args) -> Description:
    info = replace(INFO, resolved={**INFO.resolved, **others})
    return Description(info, DESCRIPTION.flags)


def simulated(job: Job) -> Job:
    settings = job.settings.model_copy(update={"engine": "sim:cpu-tiny-llama"})
    return replace(job, settings=settings)


def checked(job: Job, vllm: Asked) -> list[str]:
    """Check the knobs, of which there are so few that nothing is said meanwhile."""
    said: list[str] = []
    try:
        return check_knobs(job, vllm, said.append)
    finally:
        assert said == []


def test_without_knobs_nothing_is_asked() -> None:
    vllm = Vllm()
    assert checked(job_of(), vllm) == []
    assert vllm.asked == []


def test_each_value_is_asked_on_the_arguments_of_the_baseline() -> None:
    vllm = Vllm()
    assert checked(job_with(block_size=[8, 32]), vllm) == []
    assert vllm.asked == [{"model": "tiny", **BASELINE, KNOB: value} for value in (8, 32)]


def test_an_impossible_value_is_refused_with_the_words_of_vllm() -> None:
    def objects(args: Args) -> str | None:
        return REPORT.format(reason="block_size (7) is odd.") if args[KNOB] == 7 else None

    with pytest.raises(UsageError) as caught:
        checked(job_with(block_size=[8, 7]), Vllm(objects))
    assert caught.value.message == "vLLM refuses 7 for knob block_size: block_size (7) is odd."
    assert "leave that value out" in caught.value.hint
    assert caught.value.exit_code == 2


def test_what_a_simulation_refuses_is_put_on_its_profile() -> None:
    job = simulated(job_with(block_size=[7]))
    with pytest.raises(UsageError, match=r"^profile cpu-tiny-llama refuses 7 for knob block_size"):
        checked(job, Vllm(lambda _args: "block_size=7 cannot be simulated"))


def test_what_a_simulation_reads_as_another_value_too() -> None:
    job = simulated(job_with(block_size=[True]))
    assert checked(job, Vllm(resolves=lambda _args: {KNOB: False})) == [
        "knob block_size: profile cpu-tiny-llama reads True as False here"
    ]


def test_a_value_that_breaks_the_check_itself_is_refused_too() -> None:
    def objects(args: Args) -> str | None:
        if args[KNOB] == 7:
            raise TrialFailed(Failure("unknown", "KeyError: 7"))
        return None

    with pytest.raises(UsageError, match="refuses 7 for knob block_size: KeyError: 7"):
        checked(job_with(block_size=[7]), Vllm(objects))


def test_a_value_that_needs_the_company_of_another_stays() -> None:
    def objects(args: Args) -> str | None:
        return "more sequences than tokens" if args[SEQS] > args[TOKENS] else None

    job = job_with(max_num_seqs=[64, 4096], max_num_batched_tokens=[2048, 8192])
    vllm = Vllm(objects)
    assert checked(job, vllm) == []
    assert vllm.asked[-3:] == [
        {"model": "tiny", TOKENS: 8192, SEQS: 4096},
        {"model": "tiny", TOKENS: 2048, SEQS: 64},
        {"model": "tiny", TOKENS: 8192, SEQS: 64},
    ]


def test_a_value_that_vllm_reads_as_another_is_told() -> None:
    vllm = Vllm(resolves=lambda args: {KNOB: int(args[KNOB])})
    assert checked(job_with(block_size=[8, "32"]), vllm) == [
        "knob block_size: vLLM reads '32' as 32 here"
    ]


def test_values_that_are_the_same_to_vllm_are_told() -> None:
    vllm = Vllm(resolves=lambda _args: {KNOB: False})
    assert checked(job_with(block_size=[False, True]), vllm) == [
        "knob block_size: vLLM reads True as False here",
        "knob block_size: False and True are the same to vLLM, False; keep one of them",
    ]


def test_a_value_that_vllm_does_not_report_is_taken_as_given() -> None:
    vllm = Vllm(resolves=lambda _args: {})
    assert checked(job_with(block_size=[8]), vllm) == []


def test_lists_are_shown_as_they_are_written() -> None:
    job = job_with(sizes=[[1, 2], [4, 1]])
    assert checked(job, Vllm(resolves=lambda args: {"sizes": sorted(args["sizes"])})) == [
        "knob sizes: vLLM reads [4, 1] as [1, 4] here"
    ]
    with pytest.raises(UsageError, match=r"vLLM refuses \[1, 2\] for knob sizes: too few"):
        checked(job, Vllm(lambda _args: "too few"))


def test_an_eager_engine_captures_no_graphs_whatever_it_is_told() -> None:
    sizes = "cudagraph_capture_sizes"
    own = {sizes: [1, 2]}
    job = job_of(knobs={sizes: [[1, 2], [1, 2, 4]]}, engine_args=own)
    assert checked(job, Vllm()) == [
        f"knob {sizes}: vLLM reads [1, 2] as [] here",
        f"knob {sizes}: vLLM reads [1, 2, 4] as [] here",
        f"knob {sizes}: [1, 2] and [1, 2, 4] are the same to vLLM, []; keep one of them",
    ]


def test_an_engine_too_short_for_the_trace_is_refused() -> None:
    vllm = Vllm(resolves=lambda _args: {"max_model_len": 512})
    with pytest.raises(UsageError, match="requests of 512 tokens, and the longest has 1004"):
        checked(job_with(block_size=[8]), vllm)


def test_of_many_values_it_is_said_that_they_are_checked() -> None:
    said: list[str] = []
    job = job_with(block_size=list(range(1, 50)), max_num_seqs=[64])
    assert check_knobs(job, Vllm(), said.append) == []
    assert said == [
        "asking vLLM about 49 values of knob block_size",
        "asking vLLM about 1 values of knob max_num_seqs",
    ]


def test_company_is_tried_from_the_ends_of_its_ladder() -> None:
    job = job_with(block_size=[7], max_num_seqs=[8, 16, 32, 64, 128])
    vllm = Vllm(lambda args: None if args[SEQS] == 128 else "too few sequences")
    with pytest.raises(UsageError, match="refuses 8 for knob max_num_seqs"):
        checked(job, vllm)
    beside = [args[SEQS] for args in vllm.asked if args[TOKENS] == BASELINE[TOKENS]]
    assert beside[:3] == [64, 8, 128]


def test_a_value_with_more_company_than_is_tried_stays() -> None:
    job = job_with(block_size=[7], max_num_seqs=list(range(8, 1032, 8)))
    vllm = Vllm(lambda args: "odd" if args[KNOB] == 7 else None)
    assert check_knobs(job, vllm, lambda _: None) == []
    assert sum(args[KNOB] == 7 for args in vllm.asked) == 1 + 32


@pytest.mark.engine
@pytest.mark.timeout(120)
def test_the_installed_vllm_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with Supervisor(log_folder=tmp_path) as supervisor:

        def check(**knobs: list[Any]) -> list[str]:
            described = supervisor.describe(ENGINE_ARGS)
            own = {name: value for name, value in ENGINE_ARGS.items() if name != "model"}
            job = job_of(knobs=knobs, engine_args=own, described=described)
            return checked(job, supervisor)

        assert check(long_prefill_token_threshold=[0, 512], max_num_seqs=[64, 1024]) == []
        assert check(max_num_batched_tokens=[8192], max_num_seqs=[4096]) == []
        assert check(dtype=["half", "float16"]) == [
            "knob dtype: vLLM reads 'half' as 'float16' here",
            "knob dtype: 'half' and 'float16' are the same to vLLM, 'float16'; keep one of them",
        ]
        with pytest.raises(UsageError, match=r"refuses 100000 .*greater than the max_model_len"):
            check(long_prefill_token_threshold=[100_000])
        with pytest.raises(UsageError, match="refuses 'sjf' for knob scheduling_policy"):
            check(scheduling_policy=["sjf"])
