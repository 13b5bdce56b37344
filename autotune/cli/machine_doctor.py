"""``autotune doctor`` of this machine: a line for each check, or one document for an issue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from autotune.endpoint_settings import EndpointSettings
    from autotune.engine.endpoint_checks import CheckState
    from autotune.study.doctor.results import Result, State

_INDENT = " " * 6
_LEAST_NAME = 3
"""Of shorter names every text would be full."""
_COMMON = frozenset(("root", "user", "localhost", "vllm", "ubuntu", "autotune"))
"""Names of users and hosts that tell nobody anything."""
_HOST, _USER, _HOME = "<host>", "<user>", "~"


def examine_machine(
    storage: str | None,
    study_name: str | None,
    log_folder: Path,
    endpoint: str | None,
    config: Path,
    *,
    as_json: bool,
) -> None:
    """Check this machine, and the endpoint if one is named; print what was found.

    Raises:
        UsageError: there is no such endpoint, or the configuration cannot be read.
        EnvironmentFault: a check failed; after everything was printed.
    """
    import json
    import os

    from autotune.endpoint_settings import endpoint_named
    from autotune.errors import EnvironmentFault
    from autotune.settings import load_endpoints
    from autotune.study.doctor.machine import Subject, examine
    from storage.database import resolve_url

    server = None
    if endpoint is not None:
        server = endpoint_named(load_endpoints(config), endpoint, where=str(config))
    url = resolve_url(storage, os.environ)
    found: list[Result] = []
    results = examine(Subject(url, study_name, log_folder, os.environ))
    for part in (results, _endpoint_results(endpoint or "", server)):
        for result in part:
            found.append(result)
            if not as_json:
                typer.echo("\n".join(result_lines(result, url)))
    if as_json:
        mask = Mask.of_this_machine(url, os.environ)
        typer.echo(json.dumps(machine_json(found, mask), indent=2))
    failed = [each.name for each in found if each.state == "fail"]
    if failed:
        names = ", ".join(dict.fromkeys(failed))
        raise EnvironmentFault(
            f"not fit for a study: {names}", hint="what is marked fail says why"
        )


class Mask:
    """Takes out of a text what tells who and where one is: secrets, users, hosts, the home.

    Args:
        url: of the database, whose secrets are taken out wherever they are.
        home: replaced by ``~``; None if there is none.
        users, hosts: names, as whole words.
    """

    def __init__(
        self, url: str, *, home: str | None, users: Iterable[str], hosts: Iterable[str]
    ) -> None:
        self._url = url
        self._home = home if home and len(home) > 1 else None
        named = [(name, _USER) for name in users] + [(name, _HOST) for name in hosts]
        usable = [(n, w) for n, w in named if len(n) >= _LEAST_NAME and n not in _COMMON]
        # A full name of a host before its first part.
        usable.sort(key=lambda pair: -len(pair[0]))
        self._words = [(re.compile(rf"(?<![\w-]){re.escape(n)}(?![\w-])"), w) for n, w in usable]

    @classmethod
    def of_this_machine(cls, url: str, environ: Mapping[str, str]) -> Mask:
        import os
        import pwd
        import socket

        host = socket.gethostname()
        users = [environ[name] for name in ("USER", "LOGNAME", "SUDO_USER") if name in environ]
        try:
            entry = pwd.getpwuid(os.getuid())
        except KeyError:  # Containers run as users that nobody has named.
            home = environ.get("HOME")
        else:
            users, home = [*users, entry.pw_name], environ.get("HOME", entry.pw_dir)
        return cls(url, home=home, users=users, hosts=[host, host.partition(".")[0], *_of(url)])

    def __call__(self, text: str) -> str:
        from storage.masking import hide_secrets

        masked = hide_secrets(text, self._url)
        if self._home is not None:
            masked = masked.replace(self._home, _HOME)
        for pattern, word in self._words:
            masked = pattern.sub(word, masked)
        return masked


def result_lines(result: Result, url: str) -> Iterator[str]:
    """Return a result in lines of at most 80 columns, without secrets of the database's URL."""
    import textwrap

    from autotune.cli.tables import plain_line
    from autotune.traffic.picture import WIDTH
    from storage.masking import hide_secrets

    def wrapped(text: str, first: str) -> list[str]:
        return textwrap.wrap(
            plain_line(hide_secrets(text, url)),
            WIDTH,
            initial_indent=first,
            subsequent_indent=_INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )

    yield from wrapped(f"{result.name}: {result.words}", f"{result.state:4}  ")
    if result.hint and result.state != "ok":
        yield from wrapped(f"hint: {result.hint}", _INDENT)


def machine_json(results: Sequence[Result], mask: Mask) -> dict[str, Any]:
    """Return the results as one document that may be shown to anybody."""
    from autotune import __version__
    from autotune.study.doctor.results import worst

    return {
        "autotune": __version__,
        "state": worst(results),
        "checks": [
            {
                "name": mask(each.name),
                "state": each.state,
                "words": mask(each.words),
                "hint": mask(each.hint),
            }
            for each in results
        ],
    }


def _of(url: str) -> list[str]:
    """Return the host of a database's URL."""
    from storage.database import parse_url
    from storage.errors import StorageError

    try:
        host = parse_url(url).host
    except StorageError:
        return []
    return [host] if host else []


def _endpoint_results(name: str, server: EndpointSettings | None) -> Iterator[Result]:
    """Yield what each step to a server's token found; nothing without a server."""
    if server is None:
        return
    import asyncio

    from autotune.cli.endpoint_doctor import endpoint_checks
    from autotune.study.doctor.results import Result

    for check in asyncio.run(endpoint_checks(name, server, shown=False)):
        label = f"endpoint {check.name.replace('_', ' ')}"
        yield Result(label, _state(check.state), check.sentence, check.hint)


def _state(state: CheckState) -> State:
    if state == "failed":
        return "fail"
    return "warn" if state == "warn" else "ok"
