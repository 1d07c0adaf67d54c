"""The processes of the API's bench: `outrider up`, the scripted model, and an app that does nothing."""

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

import outrider
from outrider.testing.scripted_server.wire_format import Json

PATIENCE = 60.0


def _environ(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    """None of the user's own variables, and the same Outrider in every process."""
    source = str(Path(outrider.__file__).parents[1])
    home = {"HOME": str(folder), "OUTRIDER_HOME": str(folder / "home"), "PYTHONPATH": source}
    return {"PATH": os.defpath, **home, **more}


class Process:
    """A server that was started and has said where it listens."""

    def __init__(self, child: "subprocess.Popen[bytes]", line: bytes, seconds: float) -> None:
        self.line = line
        self.seconds = seconds
        """From the start to the line that says where it listens."""
        self._child = child

    @property
    def resident(self) -> int:
        """What it holds now, in MiB."""
        return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{self._child.pid}/status").read_text())[0]) // 1024

    @property
    def cpu(self) -> float:
        """Seconds of CPU it has used."""
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _running(words: list[str], environ: Mapping[str, str], stdin: bytes = b"") -> Generator[Process]:
    begun = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", *words], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("a process without pipes")
        child.stdin.write(stdin)
        child.stdin.close()
        line = child.stdout.readline() if select.select([child.stdout], [], [], PATIENCE)[0] else b""
        if not line:
            raise RuntimeError(f"{' '.join(words)} did not start")
        yield Process(child, line, time.perf_counter() - begun)
    finally:
        child.terminate()
        child.wait(PATIENCE)
        if child.stdout:
            child.stdout.close()


@contextmanager
def model(folder: Path, script: Json) -> Generator[tuple[Process, str]]:
    """The scripted model, and its base URL."""
    words = ["outrider", "practice-model", "--script", "-"]
    with _running(words, _environ(folder, {}), msgspec.json.encode(script)) as process:
        yield process, msgspec.json.decode(process.line)["url"]


@contextmanager
def trivial(folder: Path) -> Generator[str]:
    """An app that answers everything with two letters, on the server Outrider uses too: its URL."""
    with _running(["bench.serving"], {**_environ(folder, {}), "PYTHONPATH": str(Path(__file__).parents[1])}) as process:
        yield process.line.decode().strip()


class Home:
    """Where `outrider up` is started, with a key that may do as much as a bench wants."""

    def __init__(self, folder: Path, url: str, settings: Mapping[str, str]) -> None:
        named = {f"OUTRIDER_{name.replace('.', '_').upper()}": value for name, value in settings.items()}
        asked = {
            "OUTRIDER_MODEL": "openai-chat:scripted",
            "OUTRIDER_MODEL_URL": url,
            "OUTRIDER_MODEL_KEY": "k-12345678",
        }
        self._environ = _environ(folder, {**asked, **named})
        words = ["outrider", "key", "create", "bench", "--rate", "1000000", "--concurrent", "1000"]
        made = subprocess.run([sys.executable, "-m", *words], env=self._environ, check=True, capture_output=True)
        self.headers = {"authorization": f"Bearer {made.stdout.decode().strip()}"}

    @contextmanager
    def up(self) -> Generator[tuple[Process, str]]:
        """`outrider up`, and its URL."""
        with _running(["outrider", "up", "--port", "0"], self._environ) as process:
            yield process, process.line.decode().split()[2]


def _serve_nothing() -> None:
    import socket

    import uvicorn
    from starlette.types import Receive, Scope, Send

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")  # pyright: ignore[reportArgumentType]
        uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    _serve_nothing()
