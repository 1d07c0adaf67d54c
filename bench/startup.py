"""How long commands take from the shell, what imports cost, and how much memory a process holds."""

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.table import Row, progress, spread
from outrider.testing.scripted_model import says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import ScriptedServer

_OUTRIDER = str(Path(sys.executable).with_name("outrider"))


def _environ(folder: Path, server: ScriptedServer | None = None) -> dict[str, str]:
    environ = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "OUTRIDER_HOME": str(folder / "home")}
    if server:
        model = {"OUTRIDER_MODEL": "openai-chat:instant", "OUTRIDER_MODEL_URL": server.url, "OUTRIDER_MODEL_KEY": "x"}
        environ |= model
    return environ


def _time(command: list[str], environ: dict[str, str], cwd: Path, times: int) -> list[float]:
    taken: list[float] = []
    for _ in range(times + 1):
        start = time.perf_counter()
        subprocess.run(command, env=environ, cwd=cwd, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
    return taken[1:]


def commands(times: int) -> Iterator[Row]:
    """Wall time of commands, beside a bare interpreter's."""
    with tempfile.TemporaryDirectory() as name, ScriptedServer(script(*[says("hello")] * 3)) as server:
        folder = Path(name)
        (folder / "work").mkdir()
        cases = [
            ("python -c pass", [sys.executable, "-c", "pass"], None),
            ("outrider --version", [_OUTRIDER, "--version"], None),
            ("outrider --help", [_OUTRIDER, "--help"], None),
            ("outrider sessions list", [_OUTRIDER, "sessions", "list"], None),
            ("outrider run, practice model", [_OUTRIDER, "run", "hello"], None),
            ("outrider run, instant HTTP model", [_OUTRIDER, "run", "hello"], server),
        ]
        for what, command, model in cases:
            progress(what)
            yield Row("start-up", what, spread(_time(command, _environ(folder, model), folder / "work", times)))


def imports(times: int) -> Iterator[Row]:
    """CPU time of importing one module in a new interpreter, less the interpreter itself."""
    code = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"
    for module in (
        "outrider",
        "outrider.core.ports",
        "outrider.cli.commands",
        "outrider.app.open",
        "outrider.models.http_client",
    ):
        progress(f"import {module}")
        command = [sys.executable, "-c", code.format(module)]
        taken = [
            float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(times)
        ]
        yield Row("import", module, spread(taken), "CPU")


def _resident(pid: int) -> int:
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) // 1024


def memory() -> Iterator[Row]:
    """Memory of one command, and of an idle chat."""
    with tempfile.TemporaryDirectory() as name, ScriptedServer(script(says("hello"))) as server:
        folder = Path(name)
        (folder / "work").mkdir()
        peak = (
            "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, capture_output=True);"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)"
        )
        command = [sys.executable, "-c", peak, _OUTRIDER, "run", "hello"]
        for what, model in (("outrider run, practice model", None), ("outrider run, instant HTTP model", server)):
            progress(f"memory: {what}")
            done = subprocess.run(
                command, env=_environ(folder, model), cwd=folder / "work", check=True, capture_output=True, text=True
            )
            yield Row("memory", what, f"{int(done.stdout)} MB", "peak")
        yield from _idle_chat(folder)
    yield Row("memory", "this benchmark", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB", "peak")


def _idle_chat(folder: Path) -> Iterator[Row]:
    import pty

    progress("memory: idle chat")
    start = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder / "work")
        os.execve(_OUTRIDER, [_OUTRIDER], {**_environ(folder), "TERM": "xterm-256color"})
    try:
        seen = b""
        while b"/help" not in seen and time.perf_counter() - start < 20:
            seen += os.read(terminal, 4096)
        ready = time.perf_counter() - start
        deadline = time.perf_counter() + 2
        while time.perf_counter() < deadline:
            _drain(terminal)
        yield Row("start-up", "outrider chat, until its greeting", f"{ready * 1000:.0f} ms")
        yield Row("memory", "outrider chat, idle", f"{_resident(pid)} MB", "resident")
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


def _drain(terminal: int) -> None:
    import select

    if select.select([terminal], [], [], 0.1)[0]:
        os.read(terminal, 65536)
