from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli import check
from autotune.cli.check_words import check_lines, drift_table
from autotune.engine.serve import Gone
from autotune.engine.serve_report import Proof
from autotune.errors import EnvironmentFault
from autotune.export.document import Export
from autotune.study import check_here, check_serve
from autotune.study.check import Checked
from autotune.study.check_drift import Drifted, drifted
from autotune.study.check_export import of_export
from autotune.study.check_here import Here, matters_of
from autotune.study.check_result import Compared, Served
from objectives.limits import Budget
from objectives.measurement import measure
from tests.autotune.cli.conftest import Autotune
from tests.autotune.engine.served import fake
from tests.objectives.builders import random_samples

pytestmark = pytest.mark.wire

HERE = Here("0.32.0", "2.9.0", ("scripted",))


@pytest.fixture
def file(
    autotune: Autotune, studies: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The export of study ``knee``, on a machine that is as it was."""
    monkeypatch.setattr(check_here, "look_around", lambda: HERE)
    path = tmp_path / "serve.yaml"
    ran = autotune("best", "--storage", studies, "--study-name", "knee", "--output", path)
    assert ran.code == 0
    return path


def test_an_export_applies_where_nothing_has_changed(
    autotune: Autotune, studies: str, file: Path
) -> None:
    ran = autotune("check", file, "--storage", studies)
    assert ran.code == 0
    assert "same     arguments  as measured by study 'knee'" in ran.out
    assert ran.out.endswith("\nIt applies.\n")


def test_without_a_file_it_is_what_the_study_would_export(
    autotune: Autotune, studies: str, file: Path
) -> None:
    ran = autotune("check", "--storage", studies, "--study-name", "knee", "--format", "json")
    found = json.loads(ran.out)
    assert ran.code == 0
    assert found["export"] == "study 'knee'"
    assert found["applies"] is True
    assert {each["name"]: each["state"] for each in found["matters"]}["arguments"] == "same"


def test_a_value_that_was_changed_by_hand_ends_with_code_3(
    autotune: Autotune, studies: str, file: Path, tmp_path: Path
) -> None:
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("max-num-seqs: 24", "max-num-seqs: 240"), encoding="utf-8")
    output = tmp_path / "check.json"
    ran = autotune("check", file, "--storage", studies, "--output", output)
    assert ran.code == 3
    assert "max_num_seqs=240 in the file, 24 measured" in ran.err
    assert json.loads(output.read_text(encoding="utf-8"))["applies"] is False


def test_a_file_needs_no_database(autotune: Autotune, file: Path, tmp_path: Path) -> None:
    ran = autotune("check", file, "--storage", f"sqlite:///{tmp_path}/none.db")
    assert ran.code == 0
    assert "study 'knee' is not at hand" in ran.out


def test_traffic_is_compared_with_the_samples_where_the_trace_is_gone(
    autotune: Autotune, studies: str, file: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "new.jsonl"
    rows = [
        {"timestamp": 9 * n, "input_length": 500, "output_length": 4, "hash_ids": [n]}
        for n in range(200)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    ran = autotune("check", file, "--storage", studies, "--trace", trace)
    assert ran.code == 3
    assert "traffic has moved" in ran.err
    assert "prompt_p50" in ran.out
    alone = autotune("check", file, "--storage", f"sqlite:///{tmp_path}/no.db", "--trace", trace)
    assert alone.code == 2
    assert "is not at hand" in alone.err


def test_an_export_is_served(
    autotune: Autotune,
    studies: str,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check_serve, "serve_command", fake)
    trace = tmp_path / "t.jsonl"
    row = {"timestamp": 0, "input_length": 36, "output_length": 2, "hash_ids": [1, 2, 3]}
    trace.write_text(json.dumps(row) + "\n", encoding="utf-8")
    file.write_text(file.read_text("utf-8") + "enable-prefix-caching: false\n", "utf-8")
    ran = autotune(
        "check", file, "--serve", "--storage", studies, "--trace", trace, "--warmup-s", "0",
        "--log-folder", tmp_path / "logs",
    )  # fmt: skip
    assert ran.code == 3
    assert "enable_prefix_caching: the file says False, the server runs with True" in ran.err
    assert "NOT in force" in ran.out
    assert "the server is gone: ended with status 0" in ran.out
    assert "the traffic is not the study's" in ran.out


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the current folder that no study has written."""
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("model: m\nmax-num-seqs: 8\n", encoding="utf-8")


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("absent.yaml",), "cannot read absent.yaml"),
        (("own.yaml", "--serve"), "does not say which traffic"),
        (("own.yaml", "--study-name", "none"), "none"),
    ],
)
def test_what_cannot_be_checked_is_said(
    autotune: Autotune, studies: str, arguments: tuple[str, ...], said: str
) -> None:
    ran = autotune("check", *arguments, "--storage", studies)
    assert ran.code == 2
    assert said in ran.err


def test_a_study_with_nothing_to_export_ends_with_code_3(autotune: Autotune, studies: str) -> None:
    assert autotune("check", "--storage", studies, "--study-name", "slow").code == 3
    assert autotune("check", "--storage", studies, "--study-name", "new").code == 2


def served(tmp_path: Path, gone: Gone) -> Served:
    samples = random_samples(40, seed=1)
    return Served(
        command=("vllm",),
        log=tmp_path / "served.log",
        start_s=12.0,
        first_token_s=0.5,
        kv_cache_tokens=65536,
        proofs=(
            Proof(
                "max_num_seqs", 24, 24, "in_force", "/server_info scheduler_config.max_num_seqs"
            ),
            Proof("dtype", "auto", "torch.bfloat16", "resolved", "/server_info"),
            Proof("seed", 1, None, "not_provable", "no report of the server has it"),
        ),
        measurement=measure(samples, classes=(), budget=Budget(())),
        same_traffic=True,
        kept=None,
        compared=(
            Compared("ttft_p95", 100.0, 90.0, 110.0, 105.0, 5.0, 0.05, within=True),
            Compared("itl_p99", 10.0, 9.0, None, 8.0, -2.0, -0.2, within=False),
            Compared("output_throughput", 0.0, None, None, 8.0, 8.0, None, within=None),
        ),
        late="requests left late",
        gone=gone,
    )


def test_what_serving_showed_is_told_in_tables(tmp_path: Path) -> None:
    gone = Gone("ended with status 0", 2.0, ("1 (a)", "2 (b)"), ("2 (b)",), (), ("x",), False)
    exported = of_export(Export("m", {}, {}, provenance={}), "study 'a\x1b'")
    checked = Checked(exported, (), served=served(tmp_path, gone))
    text = "\n".join(check_lines(checked, width=120))
    assert "\x1b" not in text
    for part in (
        "ready after 12.0 s, first token after 0.50 s, KV cache of 65536 tokens",
        "left to vLLM",
        "not provable",
        "90.00 to 110.00",
        "+5.00 ms",
        "+5.0%",
        "client_bound: requests left late",
        "2 processes ended, 2 (b) had to be ended, 1 segments of shared memory removed",
        "Nothing speaks against it, but what it brings could not be measured.",
    ):
        assert part in text
    with pytest.raises(EnvironmentFault, match="does not count: requests left late"):
        check._print(checked, None, as_json=False)
    stays = Gone("ended by SIGKILL", 2.0, (), (), (), (), listens=True)
    left = Checked(exported, (), served=served(tmp_path, stays))
    assert "the server is NOT gone: something answers at its port" in check_lines(left, width=80)


def test_what_was_not_compared_is_not_said_to_apply() -> None:
    exported = of_export(Export("m", {}, {}, provenance={}), "own.yaml")
    checked = Checked(exported, matters_of(exported, HERE, None))
    assert check_lines(checked, width=80)[-1] == (
        "Nothing that was compared speaks against it; vllm and device were not."
    )


def test_drift_is_a_table_that_narrow_screens_stack() -> None:
    row = Drifted("reused_share", 0.1, 0.4, 0.3, None, 0.0001, beyond_noise=True, matters=True)
    wide, narrow = drift_table([row], 120), drift_table([row], 30)
    assert "reused_share  0.100  0.400" in wide[-1]
    assert max(map(len, narrow)) <= 30
    assert drifted([row]) == (row,)
