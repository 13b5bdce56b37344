"""All that follows a study, opened by the settings and told how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.cli import os_faults
from autotune.cli.exit_codes import exit_code_of
from autotune.cli.signals import Interrupted, heard_by
from autotune.cli.watch import ScreenWatcher
from autotune.errors import AutotuneError, UsageError
from autotune.settings import SIMULATED, TuneSettings
from autotune.study.session import log_folder, study_name
from autotune.watching.deliveries import Command, Delivery, Webhook
from autotune.watching.events import Announcer
from autotune.watching.listener import Ending, Listener
from autotune.watching.log_file import LogFile
from autotune.watching.outbox import Outbox
from autotune.watching.progress import StudyProgress
from autotune.watching.secrets import Secrets
from autotune.watching.status_file import STATUS_FILE, StatusFile
from autotune.watching.systemd import ServiceManager
from autotune.watching.watchers import Watchers
from autotune.watching_settings import is_webhook, words_of_command
from objectives.errors import ObjectiveError
from storage.database import resolve_url
from storage.errors import StorageError

NOTIFY_URL_VARIABLE = "AUTOTUNE_NOTIFY_URL"
_TOKENS = ("HF_TOKEN",)


@dataclass(slots=True)
class Followed:
    """What follows a study; whoever runs it says with which exit code it has finished."""

    watcher: Watchers
    exit_code: int = 0


@contextmanager
def followed(settings: TuneSettings, *, environ: Mapping[str, str]) -> Iterator[Followed]:
    """Open what follows a study, and tell it in the end how the block was left.

    Raises:
        UsageError: an environment variable cannot be used.
    """
    webhook = _webhook(settings, environ)
    mask = _secrets(settings, environ, webhook).mask
    progress = _progress(settings, mask)
    with ExitStack() as stack:

        def complain(line: str) -> None:
            screen.say(line)

        log = _log(settings, study_name(settings), mask, complain)
        screen = ScreenWatcher(record=None if log is None else log.write, mask=mask)
        stack.enter_context(screen)
        listeners: list[Listener | None] = [
            progress,
            screen,
            StatusFile(_status_path(settings), progress),
            ServiceManager.of(environ, progress),
            _announcer(settings, webhook, environ, progress, complain),
            log,
        ]
        watchers = Watchers([each for each in listeners if each is not None], mask=mask)
        stack.enter_context(heard_by(watchers.stopping))
        following = Followed(watchers)
        try:
            yield following
        except BaseException as error:
            watchers.ended(_ending_of(error))
            raise
        watchers.ended(Ending("finished", following.exit_code))


@contextmanager
def logged(
    settings: TuneSettings, name: str, *, environ: Mapping[str, str]
) -> Iterator[ScreenWatcher]:
    """Return a screen for what is no study, whose lines the log file has too, if there is one."""
    mask = _secrets(settings, environ, None).mask

    def complain(line: str) -> None:
        screen.say(line)

    log = _log(settings, name, mask, complain)
    with ScreenWatcher(record=None if log is None else log.write, mask=mask) as screen:
        if log is None:
            yield screen
            return
        try:
            yield screen
        except BaseException as error:
            log.ended(_ending_of(error))
            raise
        else:
            log.ended(Ending("finished", 0))
        finally:
            log.close()


def _webhook(settings: TuneSettings, environ: Mapping[str, str]) -> str | None:
    if settings.notify_url is not None:
        return settings.notify_url
    url = environ.get(NOTIFY_URL_VARIABLE, "")
    if url and not is_webhook(url):
        raise UsageError(
            f"{NOTIFY_URL_VARIABLE} is no http or https URL", hint="correct it, or unset it"
        )
    return url or None


def _secrets(settings: TuneSettings, environ: Mapping[str, str], webhook: str | None) -> Secrets:
    urls = [resolve_url(settings.storage, environ), settings.model, settings.trace]
    return Secrets(urls, webhook=webhook, tokens=[environ.get(name, "") for name in _TOKENS])


def _progress(settings: TuneSettings, mask: Callable[[str], str]) -> StudyProgress:
    profile = Path(settings.engine.removeprefix(SIMULATED)).name.removesuffix(".json")
    return StudyProgress(
        study_name(settings),
        simulated=profile if settings.simulated else None,
        trials=settings.trials,
        mask=mask,
    )


def _status_path(settings: TuneSettings) -> Path:
    if settings.status_file is not None:
        return settings.status_file
    return log_folder(settings, study_name(settings)) / STATUS_FILE


def _log(
    settings: TuneSettings,
    name: str,
    mask: Callable[[str], str],
    complain: Callable[[str], None],
) -> LogFile | None:
    if settings.log_file is None:
        return None
    return LogFile(
        settings.log_file,
        study=name,
        log_format=settings.log_format,
        rotate_bytes=settings.log_rotate_bytes,
        keep=settings.log_keep,
        mask=mask,
        complain=complain,
    )


def _announcer(
    settings: TuneSettings,
    webhook: str | None,
    environ: Mapping[str, str],
    progress: StudyProgress,
    complain: Callable[[str], None],
) -> Announcer | None:
    deliveries: list[Delivery] = []
    if settings.notify is not None:
        deliveries.append(Command(words_of_command(settings.notify), environ=environ))
    if webhook is not None:
        deliveries.append(Webhook(webhook))
    if not deliveries:
        return None
    return Announcer(progress, Outbox(deliveries, complain=complain))


def _ending_of(error: BaseException) -> Ending:
    """Return how a study ends that an error has ended."""
    code = exit_code_of(error)
    if isinstance(error, Interrupted):
        return Ending("interrupted", code, str(error))
    if isinstance(error, (AutotuneError, ObjectiveError, StorageError)):
        return Ending("failed", code, _one_line(error.message), error.hint)
    if isinstance(error, OSError):
        message, hint = os_faults.words_of(error)
        return Ending("failed", code, message, hint)
    return Ending("failed", code, _one_line(f"{type(error).__name__}: {error}"))


def _one_line(text: str) -> str:
    return " ".join(text.split())
