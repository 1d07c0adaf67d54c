"""Codex's npm package: its native program runs, without the Node script before it, and only from the package itself."""

import json
import platform
import sys
from pathlib import Path

import anyio
import pytest

from outrider.config.load import load
from outrider.runtimes.codex.launch import codex_program
from outrider.runtimes.codex.npm_package import find_native_program
from tests.support.in_process import InProcessPerson as Person
from tests.support.scripted_codex import ScriptedCodex

MACHINE = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine(), "")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux" or not MACHINE, reason="the package's names for this platform"),
]
NAME = f"codex-linux-{MACHINE}"
TARGET = f"{'x86_64' if MACHINE == 'x64' else 'aarch64'}-unknown-linux-musl"
FAILS = "#!/bin/sh\necho the script of the package was started >&2\nexit 3\n"
SHIM = """\
#!/bin/sh
basedir=$(dirname "$(echo "$0" | sed -e 's,\\\\,/,g')")
if [ -x "$basedir/node" ]; then
  exec "$basedir/node"  "$basedir/{script}" "$@"
else
  exec node  "$basedir/{script}" "$@"
fi
"""


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def install(modules: Path) -> Path:
    """The package in this `node_modules`, and its command, as npm makes it."""
    package = modules / "@openai" / "codex"
    script = write_program(package / "bin" / "codex.js", FAILS)
    (package / "package.json").write_text(json.dumps({"name": "@openai/codex", "version": "0.166.0"}))
    command = modules / ".bin" / "codex"
    command.parent.mkdir()
    command.symlink_to(script)
    return command


def native(folder: Path, text: str = "#!/bin/sh\n") -> Path:
    return write_program(folder / "vendor" / TARGET / "bin" / "codex", text)


@pytest.mark.parametrize("folder", [f"@openai/{NAME}", f"@openai/codex/node_modules/@openai/{NAME}", "@openai/codex"])
def test_the_native_program_is_found_wherever_npm_puts_it(tmp_path: Path, folder: str) -> None:
    modules = tmp_path / "node_modules"
    command = install(modules)
    program = native(modules / folder)
    found = find_native_program(str(command))
    assert found is not None
    assert found.path == str(program)
    root = str(modules / "@openai" / "codex")
    assert found.environ == {"CODEX_MANAGED_PACKAGE_ROOT": root, "CODEX_MANAGED_BY_NPM": "1"}


def test_the_native_program_is_found_behind_the_shell_script_of_pnpm(tmp_path: Path) -> None:
    store = tmp_path / "global" / "5" / ".pnpm" / "@openai+codex@0.166.0" / "node_modules"
    install(store)
    program = native(store / "@openai" / NAME)
    linked = tmp_path / "global" / "5" / "node_modules" / "@openai" / "codex"
    linked.parent.mkdir(parents=True)
    linked.symlink_to(store / "@openai" / "codex")
    script = "global/5/node_modules/@openai/codex/bin/codex.js"
    command = write_program(tmp_path / "codex", SHIM.replace("{script}", script))
    found = find_native_program(str(command))
    assert found is not None
    assert (found.path, "CODEX_MANAGED_BY_PNPM" in found.environ) == (str(program), True)


def test_a_program_that_does_not_belong_to_the_package_is_never_used(tmp_path: Path) -> None:
    modules = tmp_path / "project" / "node_modules" / "tool" / "node_modules"
    modules.mkdir(parents=True)
    command = install(modules)
    for planted in (
        tmp_path / "project" / "node_modules",
        tmp_path / "node_modules",
        modules / "@openai" / "codex" / "bin",
    ):
        native(planted / "@openai" / NAME)
    assert find_native_program(str(command)) is None
    native(modules / "@openai" / NAME).chmod(0o644)
    assert find_native_program(str(command)) is None
    (modules / "@openai" / "codex" / "package.json").write_text('{"name": "another"}')
    native(modules / "@openai" / NAME)
    assert find_native_program(str(command)) is None


@pytest.mark.parametrize("text", ["", "#!/bin/sh\nexec codex.js\n", "\x7fELF\0"])
def test_any_other_program_runs_as_it_is(tmp_path: Path, text: str) -> None:
    command = write_program(tmp_path / "codex", text)
    assert find_native_program(str(command)) is None
    config = load(tmp_path / "home", {}, {"codex.command": str(command)})
    assert codex_program(config, tmp_path, "0" * 32).argv[0] == str(command)


async def test_turns_and_the_doctor_run_the_native_program(tmp_path: Path) -> None:
    codex = ScriptedCodex(tmp_path)
    modules = tmp_path / "node_modules"
    command = install(modules)
    program = native(modules / "@openai" / NAME, Path(codex.command).read_text())
    async with codex.open_agent(codex_command=str(command)) as agent:
        with anyio.fail_after(60):
            ended = await agent.say("go", session="s")
    assert (ended.outcome, ended.text) == ("done", "ok")
    (tmp_path / "person").mkdir()
    person = Person(tmp_path / "person")
    person.environ |= {"OUTRIDER_CODEX_COMMAND": str(command), "OUTRIDER_CODEX_HOME": str(codex.folder)}
    checks = json.loads(
        await anyio.to_thread.run_sync(lambda: person.types("runtime", "doctor", "codex", "--json").out)
    )
    assert checks["checks"][:2] == [
        {"name": "program", "verdict": "fine", "text": str(program), "advice": ""},
        {"name": "version", "verdict": "fine", "text": "0.163.0", "advice": ""},
    ]
