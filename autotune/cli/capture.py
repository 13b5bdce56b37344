"""``autotune capture``: record traffic on its way to a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import folder_of


def capture(
    *,
    upstream: Annotated[
        str,
        typer.Option(help="The server that answers: http://127.0.0.1:8000.", show_default=False),
    ],
    output: Annotated[
        Path,
        typer.Option(
            help="Folder for the traces.", parser=folder_of, metavar="PATH", show_default=False
        ),
    ],
    listen: Annotated[str, typer.Option(help="Where clients come: HOST:PORT.")] = "127.0.0.1:8100",
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Folder or hub name of the model's tokenizer. [default: prefixes are estimated]"
        ),
    ] = None,
    with_text: Annotated[
        bool, typer.Option("--with-text", help="Keep prompts and answers as text.")
    ] = False,
    rotate: Annotated[
        str, typer.Option(help="Begin another file after so long: 600 (seconds), 10m, 1h.")
    ] = "1h",
    rotate_bytes: Annotated[
        int, typer.Option(min=2**16, help="Begin another file at this size.")
    ] = 32 * 2**20,
    salt_file: Annotated[
        Path | None,
        typer.Option(help="The salt of the hashes. [default: .salt of the folder]"),
    ] = None,
    block_size: Annotated[
        int, typer.Option(min=1, max=2**16, help="Prompt tokens of one hash id.")
    ] = 16,
    allow_remote_clients: Annotated[
        bool,
        typer.Option(
            "--allow-remote-clients", help="Let --listen name an address of other machines."
        ),
    ] = False,
) -> None:
    """Pass traffic on to a server and record it as traces.

    Clients use the address of --listen as base URL, with /v1 as before. Ctrl-C ends it.
    """
    from contextlib import ExitStack

    from autotune.cli.signals import Interrupted, put_off_signals
    from autotune.errors import EnvironmentFault
    from autotune.traffic.capture.opening import CaptureOptions, opened_recorder, parse_rotate
    from autotune.traffic.capture.recorder import Rotation, say_on_stderr

    try:
        from autotune.traffic.capture.forward import parse_upstream
        from autotune.traffic.capture.proxy import bound, parse_listen, report, run, serve
    except ImportError as error:
        raise EnvironmentFault(
            f"autotune capture needs {error.name}", hint="pip install 'vllm-autotune[capture]'"
        ) from error
    target = parse_upstream(upstream)
    address = parse_listen(listen, allow_remote_clients=allow_remote_clients)
    options = CaptureOptions(
        folder=output,
        tokenizer=tokenizer,
        with_text=with_text,
        salt_file=salt_file,
        block_size=block_size,
        rotation=Rotation(every_s=parse_rotate(rotate, "--rotate"), size_bytes=rotate_bytes),
    )
    with bound(address) as listener, ExitStack() as recording:
        recorder = recording.enter_context(opened_recorder(options, by="proxy"))
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host

        def ready() -> None:
            say_on_stderr(f"listening on http://{shown}:{port}/v1, passing on to {target}")

        signum = run(
            serve(
                listener,
                target,
                recorder,
                with_text=with_text,
                say=say_on_stderr,
                ready=ready,
            )
        )
        with put_off_signals("the files are being finished"):
            recording.close()
    say_on_stderr(report(recorder.counts, 0))
    for path in recorder.paths:
        if path.exists():
            typer.echo(str(path))
    if signum is not None:
        raise Interrupted(signum)
