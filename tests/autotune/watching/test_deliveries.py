from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from autotune.watching.deliveries import Command, DeliveryFailed, Webhook
from tests.autotune.engine.certificate import with_certificate
from tests.autotune.watching.servers import nothing_until, serving, status

pytestmark = pytest.mark.wire

MESSAGE = json.dumps({"event": "finished", "text": "größer"})
SHORT_S = 0.1


def shell(script: str, **environ: str) -> Command:
    return Command(["/bin/sh", "-c", script], environ={"PATH": os.defpath, **environ})


def test_a_command_has_the_message_twice(tmp_path: Path) -> None:
    script = f'cat > {tmp_path}/in; printf %s "$AUTOTUNE_EVENT$OTHER" > {tmp_path}/env'
    shell(script, OTHER="!").deliver(MESSAGE)
    assert (tmp_path / "in").read_text("utf-8") == MESSAGE
    assert (tmp_path / "env").read_text("utf-8") == MESSAGE + "!"


def test_no_shell_sees_the_command(tmp_path: Path) -> None:
    with pytest.raises(DeliveryFailed, match="exit code 1"):
        Command(["/bin/false", ";", "touch", str(tmp_path / "x")], environ={}).deliver(MESSAGE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", ["true", "exec <&-", "head -c 9999999 /dev/zero"])
def test_one_that_reads_nothing_or_floods_is_none_of_our_business(script: str) -> None:
    command = shell(script)
    # Beyond what a pipe takes at once.
    command.deliver(json.dumps("x" * 100_000))
    command.deliver(MESSAGE)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["/bin/sh", "-c", "exit 7"], "/bin/sh ended with exit code 7"),
        (["/bin/sh", "-c", "kill -TERM $$"], "/bin/sh ended with SIGTERM"),
        (["/nowhere/to/be"], "/nowhere/to/be cannot be run: No such file or directory"),
        (["/etc/passwd"], "/etc/passwd cannot be run: Permission denied"),
        (["odd\0name"], "odd\0name cannot be run: embedded null byte"),
    ],
)
def test_why_a_command_failed_is_said(argv: list[str], reason: str) -> None:
    with pytest.raises(DeliveryFailed) as caught:
        Command(argv, environ={}).deliver(MESSAGE)
    assert str(caught.value) == reason


def test_one_that_hangs_is_killed_with_its_group(tmp_path: Path) -> None:
    """Its child would go on, and write to a pipe that a test can see the end of."""
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    script = f"import os; os.open('{pipe}', os.O_WRONLY); os.fork(); os.read(0, 9); os.pause()"
    command = Command(
        [sys.executable, "-S", "-c", script.replace("os.pause", "__import__('signal').pause")],
        environ={},
        limit_s=0.5,
    )
    with pytest.raises(DeliveryFailed, match="was killed after 0 s"):
        command.deliver(MESSAGE)
    # The end of the file: nobody has it open any more.
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_one_can_be_ended_from_another_thread() -> None:
    command = shell("exec sleep 60")
    failed: list[str] = []

    def deliver() -> None:
        try:
            command.deliver(MESSAGE)
        except DeliveryFailed as failure:
            failed.append(str(failure))

    thread = threading.Thread(target=deliver)
    thread.start()
    while thread.is_alive():
        command.give_up()
        thread.join(0.01)
    assert failed == ["/bin/sh ended with SIGKILL"]


def test_a_webhook_is_posted_json() -> None:
    with serving(status(204)) as asked:
        url = f"http://tuner:p%20w@127.0.0.1:{asked.port}/hooks/a?key=b"
        Webhook(url).deliver(MESSAGE)
    assert asked.paths == ["/hooks/a?key=b"]
    assert json.loads(asked.bodies[0]) == json.loads(MESSAGE)
    assert asked.headers[0]["Content-Type"] == "application/json"
    assert asked.headers[0]["Authorization"] == "Basic dHVuZXI6cCB3"


@pytest.mark.parametrize("code", [500, 404])
def test_another_answer_is_a_failure_that_shows_no_secret(code: int) -> None:
    with serving(status(code)) as asked, pytest.raises(DeliveryFailed) as caught:
        Webhook(f"http://127.0.0.1:{asked.port}/s3cret").deliver(MESSAGE)
    assert str(caught.value) == f"http://127.0.0.1:{asked.port}/*** answered {code}"


def test_no_redirect_is_followed() -> None:
    with serving(status(200)) as other:
        target = f"http://127.0.0.1:{other.port}/"
        with (
            serving(status(307, Location=target)) as asked,
            pytest.raises(DeliveryFailed, match="answered 307, and no redirect is followed"),
        ):
            Webhook(f"http://127.0.0.1:{asked.port}/").deliver(MESSAGE)
    assert other.paths == []


def test_one_that_is_slow_is_given_up() -> None:
    done = threading.Event()
    with serving(nothing_until(done)) as asked:
        webhook = Webhook(f"http://127.0.0.1:{asked.port}/", limit_s=SHORT_S)
        with pytest.raises(DeliveryFailed, match="no answer within 0 s"):
            webhook.deliver(MESSAGE)
        done.set()


def test_one_that_drips_for_ever_is_given_up_too() -> None:
    done = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        while not done.wait(SHORT_S / 10):
            handler.wfile.write(b"H")

    with serving(drip) as asked:
        webhook = Webhook(f"http://127.0.0.1:{asked.port}/", limit_s=SHORT_S)
        with pytest.raises(DeliveryFailed, match="no answer within 0 s"):
            webhook.deliver(MESSAGE)
        done.set()


def test_one_that_nobody_serves_is_refused() -> None:
    with serving(status(200)) as asked:
        port = asked.port
    with pytest.raises(DeliveryFailed, match="Connection refused"):
        Webhook(f"http://127.0.0.1:{port}/").deliver(MESSAGE)


def test_a_certificate_that_nobody_has_signed_is_not_accepted() -> None:
    with (
        serving(status(200), tls=with_certificate()) as asked,
        pytest.raises(DeliveryFailed, match="certificate is not accepted"),
    ):
        Webhook(f"https://localhost:{asked.port}/").deliver(MESSAGE)
    assert asked.paths == []
