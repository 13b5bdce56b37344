"""An engine host that imports no vLLM and does what a script says.

Run as ``python scripted_host.py SCRIPT FD PARENT``. ``SCRIPT`` is a JSON object: for each kind of
command the list of steps with which it is answered, one list a command of that kind, the last one
again and again. A command without steps is answered by ``described`` and the like, empty.

Steps: ``["send", KIND, BODY]``, ``["replayed"]`` (what it was asked to replay, as measured; of a
part if ``["replayed", CENSORED]``, with its schedule if asked for), ``["swept"]`` (a step of as
many tokens as each prompt of the plan has), ``["limited"]`` (to what was asked for),
``["log", TEXT]`` (to the log of the trial, as an engine would), ``["child"]`` (start a process
and report its pid), ``["exit", CODE]``, ``["kill"]`` (itself), ``["hang"]``, ``["leave"]`` (exit
while a forked process keeps the channel open).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.engine.channel import Channel, Message
from autotune.engine.protocol import Schedule
from objectives.samples import RequestSamples
from objectives.steps import COLUMNS, Steps

SLEEPER = [sys.executable, "-c", "import signal; signal.pause()"]


def measured(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return what a replay yields in which every answer is one token and comes at once."""
    scheduled_s = arrays["scheduled_s"]
    ones = np.ones(len(scheduled_s), dtype=np.int64)
    samples = RequestSamples(
        scheduled_s=scheduled_s,
        sent_s=scheduled_s,
        first_token_s=scheduled_s,
        last_token_s=scheduled_s,
        prompt_tokens=arrays["input_lengths"],
        output_tokens=ones,
        expected_output_tokens=ones,
        cached_tokens=ones,
        failed=np.zeros(len(ones), dtype=np.bool_),
        gap_s=np.empty(0),
        gap_request=np.empty(0, dtype=np.int64),
    )
    steps = Steps.from_rows(np.ones((len(ones), len(COLUMNS))))
    steps = replace(steps, prefill_tokens=arrays["input_lengths"])
    return {**samples.to_arrays(), **steps.to_arrays()}


def replayed(command: Message, censored: Mapping[str, Any] | None) -> Message:
    """Each request is named by its row, and has its prompt computed in the step of that row."""
    warmup = {"requests": 4, "passes": 2, "drift": 0.01, "seconds": 1.5}
    body = {"warmup": warmup, "replay_s": 2.5, "began_at": 10.0, "ended_at": 14.0}
    body |= {"errors": ["one"], "names": None, "censored": censored}
    arrays = measured(command.arrays)
    if command.body["detail"]:
        lengths = command.arrays["input_lengths"].tolist()
        shares = [(row, f"row-{row}", length) for row, length in enumerate(lengths)]
        schedule = Schedule.build(shares, [(name, row) for row, name, _ in shares])
        body["names"] = schedule.names
        arrays |= schedule.to_arrays()
    return Message("replayed", body, arrays)


def swept(command: Message) -> Message:
    tokens = np.array(command.body["plan"]["coarse"])
    steps = Steps.from_rows(np.ones((tokens.size, len(COLUMNS))))
    whole = command.body["seconds"] > 1
    return Message("swept", {"whole": whole}, replace(steps, prefill_tokens=tokens).to_arrays())


def act(channel: Channel, command: Message, step: list[Any]) -> None:
    match step:
        case ["send", kind, body]:
            channel.send(Message(kind, body))
        case ["replayed", *censored]:
            channel.send(replayed(command, censored[0] if censored else None))
        case ["swept"]:
            channel.send(swept(command))
        case ["limited"]:
            channel.send(Message("limited", {"limits": command.body["limits"]}))
        case ["log", text]:
            Path(command.body["log_path"]).write_text(text, encoding="utf-8")
        case ["child"]:
            child = subprocess.Popen(SLEEPER)
            body = {"stage": str(child.pid), "total": 0, "sent": 0, "done": 0, "tokens": 0}
            channel.send(Message("progress", body))
        case ["exit", code]:
            os._exit(code)
        case ["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["hang"]:
            signal.pause()
        case ["leave"]:
            subprocess.Popen(SLEEPER, pass_fds=[channel.fileno()])
            os._exit(3)
        case _:
            raise ValueError(f"unknown step {step}")


def main() -> None:
    script = json.loads(sys.argv[1])
    channel = Channel(socket.socket(fileno=int(sys.argv[2])))
    while True:
        command = channel.receive()
        if command.kind == "quit":
            if script.get("deaf"):
                signal.pause()
            return
        answers = script[command.kind]
        for step in answers.pop(0) if len(answers) > 1 else answers[0]:
            act(channel, command, step)


if __name__ == "__main__":
    main()
