"""`outrider practice-model`: a scripted model server on localhost, to test and try any client."""

import logging
import os
import signal
import sys

import anyio
import click
import msgspec

from outrider.core.errors import Refused
from outrider.testing.scripted_model import ScriptedReply
from outrider.testing.scripted_server.script import Script, parse_script
from outrider.testing.scripted_server.server import ScriptedServer


@click.command("practice-model")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Listen on this port; 0 picks a free one.")
@click.option("--say", metavar="TEXT", multiple=True, help="Reply with TEXT; repeat the option for further replies.")
@click.option("--script", metavar="FILE", help="Follow this JSON script; - reads it from stdin.")
@click.option(
    "--latency", type=click.FloatRange(0), default=0.0, metavar="MS", help="Wait this long before each reply."
)
def command(port: int, say: tuple[str, ...], script: str | None, latency: float) -> None:
    """Serve the practice model, or replies that you script, on 127.0.0.1.

    The server implements OpenAI chat completions and responses and Anthropic messages. It prints one line of JSON with
    its URL when it is ready. Without --say and --script it replies like the built-in practice model. GET /requests
    returns the requests so far.
    """
    if say and script is not None:
        raise click.UsageError("use either --say or --script, not both")
    replies = (
        _read_script(script) if script is not None else Script(replies=tuple((ScriptedReply(text),) for text in say))
    )
    # uvicorn reports a connection that the script cuts as an error.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    server = ScriptedServer(replies, port, latency / 1_000)
    try:
        anyio.run(_serve, server)
    finally:
        server.close()


def _read_script(script: str) -> Script:
    try:
        if script == "-":
            return parse_script(sys.stdin.buffer.read())
        with open(script, "rb") as file:
            return parse_script(file.read())
    except OSError as error:
        raise Refused(f"cannot read the script {script}: {error.strerror}") from error


async def _serve(server: ScriptedServer) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as group:
            await group.start(server.serve)
            click.echo(msgspec.json.encode({"url": server.url, "pid": os.getpid()}))
            async for _ in signals:
                server.stop()
                return
