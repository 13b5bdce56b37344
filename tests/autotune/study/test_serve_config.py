from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import UsageError
from autotune.export import Export, render
from autotune.study.serve_config import ServeConfig, read_serve_config

NAMES = st.sampled_from(
    ["max_num_seqs", "enable_prefix_caching", "compilation_config", "dtype", "capture_sizes"]
)
VALUES: st.SearchStrategy[Any] = (
    st.integers(1, 9000)
    | st.booleans()
    | st.sampled_from(["auto", "float16"])
    | st.lists(st.integers(1, 512), min_size=1, max_size=4)
    | st.dictionaries(st.sampled_from(["level", "mode"]), st.integers(0, 3), min_size=1)
)


@settings(max_examples=30)
@given(st.dictionaries(NAMES, VALUES))
def test_exports_are_read_back(engine_args: dict[str, Any]) -> None:
    export = Export("models/tiny", {}, engine_args, provenance={"study": "night"})
    with TemporaryDirectory() as folder:
        path = Path(folder) / "serve.yaml"
        path.write_text(render(export, "yaml"), encoding="utf-8")
        assert read_serve_config(path) == ServeConfig("models/tiny", engine_args, ())


def test_options_of_the_server_are_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("host: 0.0.0.0\nport: 8000\napi-key: hunter2\nmax-num-seqs: 8\n")
    config = read_serve_config(path)
    assert config == ServeConfig(None, {"max_num_seqs": 8}, ("api_key", "host", "port"))
    assert "hunter2" not in repr(config)


@pytest.mark.parametrize(
    ("content", "error"), [("a: [", "is no valid YAML"), ("- 1", "does not hold settings")]
)
def test_what_is_no_such_file(tmp_path: Path, content: str, error: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(content)
    with pytest.raises(UsageError, match=error):
        read_serve_config(path)
    with pytest.raises(UsageError, match="No such file"):
        read_serve_config(tmp_path / "none.yaml")
