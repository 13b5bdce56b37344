"""Stands in for ``vllm serve``: the endpoints that are asked, with faults on demand.

    python fake_vllm.py FAULT serve --config FILE --host HOST --port PORT

It reads the file by the rules of vLLM's own loader, and serves tokens of a model that always says
the same. ``FAULT`` is one of ``none``, ``dies``, ``silent`` (never ready), ``mute`` (ready, and
gives no token), ``deaf`` (ignores SIGTERM), ``orphan`` (leaves a process behind that does),
``fragile`` (dies under the second request) and ``closed`` (no ``/server_info``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

DEFAULTS: dict[str, Any] = {
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 128,
    "enable_prefix_caching": True,
    "load_format": "auto",
    "max_model_len": 8192,
    "seed": 0,
}
_PARTS = {
    "max_num_batched_tokens": "scheduler_config",
    "max_num_seqs": "scheduler_config",
    "enable_prefix_caching": "cache_config",
    "load_format": "load_config",
    "max_model_len": "model_config",
    "model": "model_config",
}
_SLEEPER = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def loaded(path: Path) -> dict[str, Any]:
    """Return the arguments that vLLM's loader makes of a file; ends with its words if it can't."""
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    # Of the false ones the loader looks for another option in the parser of the bare command.
    return dict(_argument(key, value) for key, value in given.items() if value is not False)


def _argument(key: str, value: Any) -> tuple[str, Any]:
    name = key.replace("-", "_")
    if name.startswith("no_") and value is True:
        return name.removeprefix("no_"), False
    if name not in DEFAULTS and name not in ("model", "served_model_name"):
        sys.exit(f"vllm serve: error: unrecognized arguments: --{key} {value}")
    if value is None and isinstance(DEFAULTS.get(name), int):
        sys.exit(f"vllm serve: error: argument --{key}: invalid int value: 'None'")
    return name, value


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Handler(BaseHTTPRequestHandler):
    """Answers one connection; the server has what was read, and the fault."""

    protocol_version = "HTTP/1.1"
    server: FakeServer

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/health":
            self._json({})
        elif path == "/v1/models":
            name = self.server.read.get("served_model_name", self.server.read["model"])
            self._json({"data": [{"id": name, "owned_by": "vllm", "max_model_len": 8192}]})
        elif path == "/server_info" and self.server.fault != "closed":
            self._json({"vllm_config": self._config()})
        else:
            self._json({"detail": "Not Found"}, status=404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked += 1
        if self.server.fault == "fragile" and self.server.asked > 1:
            say("(EngineCore pid=1) ERROR torch.OutOfMemoryError: CUDA out of memory.")
            os._exit(1)
        if self.server.fault == "mute":
            self._json({"error": {"message": "EngineCore encountered an issue."}}, status=500)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for number in range(body["max_tokens"]):
            last = "length" if number == body["max_tokens"] - 1 else None
            self._event(choices=[{"text": "a", "token_ids": [7], "finish_reason": last}])
        tokens = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        self._event(choices=[], usage={**tokens, "total_tokens": sum(tokens.values())})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, **chunk: Any) -> None:
        self.wfile.write(b"data: " + json.dumps({"object": "chunk", **chunk}).encode() + b"\n\n")

    def _json(self, value: Any, *, status: int = 200) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _config(self) -> dict[str, dict[str, Any]]:
        config: dict[str, dict[str, Any]] = {}
        for name, part in _PARTS.items():
            value = self.server.read.get(name, DEFAULTS.get(name))
            config.setdefault(part, {})[name] = value
        config["cache_config"]["kv_cache_size_tokens"] = 65536
        return config

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class FakeServer(ThreadingHTTPServer):
    """Serves until it is asked to end."""

    daemon_threads = True
    request_queue_size = 128
    read: dict[str, Any]
    fault: str
    asked = 0


def main() -> None:
    """Serve as the arguments of this process say."""
    fault, verb, *options = sys.argv[1:]
    given = dict(zip(options[::2], options[1::2], strict=True))
    if verb != "serve":
        sys.exit("vllm: error: invalid choice")
    read = loaded(Path(given["--config"]))
    shown = {"host": given["--host"], "port": int(given["--port"]), **read}
    say(f"(APIServer pid=1) INFO 11-30 20:15:06 [api_utils.py:286] non-default args: {shown}")
    if fault == "dies":
        sys.exit("RuntimeError: no room for error: a planted cause")
    if fault == "orphan":
        subprocess.Popen(
            [sys.executable, "-c", _SLEEPER], stdout=subprocess.PIPE
        ).stdout.readline()  # type: ignore[union-attr]
    if fault == "silent":
        signal.pause()
    server = FakeServer((given["--host"], int(given["--port"])), Handler)
    server.read, server.fault = read, fault
    if fault == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        stop = threading.Thread(target=server.shutdown)
        signal.signal(signal.SIGTERM, lambda *_: stop.start())
    server.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main()
