"""The setuid and setgid bits: no system call sets them inside the sandbox, since they would be in force outside."""

import errno
import json
import os
import platform
import shutil
import stat
from pathlib import Path

import pytest

from outrider.workspaces.sandbox import Sandbox
from outrider.workspaces.sandbox.detect import SandboxMode
from outrider.workspaces.sandbox.seccomp import ARCHITECTURES
from tests.support.outer import require_sandbox, run

pytestmark = [
    pytest.mark.promise("S7"),
    pytest.mark.skipif(platform.machine() not in ARCHITECTURES, reason="no filter is shipped for this machine"),
]
SET_ID = stat.S_ISUID | stat.S_ISGID
MKDIR = {"x86_64": {"mkdir": 83, "mkdirat": 258}, "aarch64": {"mkdirat": 34}}
SCRIPT = """
import ctypes, json, os, stat, sys
numbers, bits = json.load(open("numbers.json")), [0o4755, 0o2755, 0o6755, 0o4000, 0o2000]
library = ctypes.CDLL(None, use_errno=True)
found = {}

def call(name, *arguments):
    words = [ctypes.c_char_p(each.encode()) if isinstance(each, str) else ctypes.c_long(each) for each in arguments]
    ctypes.set_errno(0)
    answer = library.syscall(ctypes.c_long(numbers[name]), *words)
    return answer, ctypes.get_errno()

def attempt(label, name, *arguments):
    if name in numbers:
        found[label] = call(name, *arguments)[1]

here, create = -100, os.O_CREAT | os.O_WRONLY
for mode in bits:
    for kind in ("file", "folder"):
        path = f"{kind}-{mode:o}"
        os.mkdir(path) if kind == "folder" else open(path, "w").close()
        opened = os.open(path, os.O_RDONLY)
        attempt(f"chmod {path}", "chmod", path, mode)
        attempt(f"fchmod {path}", "fchmod", opened, mode)
        attempt(f"fchmod, upper half set, {path}", "fchmod", opened, mode | 1 << 40)
        attempt(f"fchmodat {path}", "fchmodat", here, path, mode)
        attempt(f"fchmodat2 {path}", "fchmodat2", here, path, mode, 0)
        attempt(f"fchmodat2 by descriptor {path}", "fchmodat2", opened, "", mode, 0x1000)
        attempt(f"chmod by /proc {path}", "chmod", f"/proc/self/fd/{opened}", mode)
        attempt(f"fchmodat by /proc {path}", "fchmodat", here, f"/proc/self/fd/{opened}", mode)
    attempt(f"open new {mode:o}", "open", f"new-{mode:o}", create, mode)
    attempt(f"openat new {mode:o}", "openat", here, f"new-{mode:o}", create, mode)
    attempt(f"openat new exclusively {mode:o}", "openat", here, f"new-{mode:o}", create | os.O_EXCL, mode)
    attempt(f"openat existing {mode:o}", "openat", here, f"file-{mode:o}", create, mode)
    attempt(f"openat unnamed {mode:o}", "openat", here, ".", os.O_TMPFILE | os.O_WRONLY, mode)
    attempt(f"open unnamed {mode:o}", "open", ".", os.O_TMPFILE | os.O_WRONLY, mode)
    attempt(f"creat {mode:o}", "creat", f"new-{mode:o}", mode)
    attempt(f"mknod {mode:o}", "mknod", f"new-{mode:o}", stat.S_IFREG | mode, 0)
    attempt(f"mknodat {mode:o}", "mknodat", here, f"new-{mode:o}", stat.S_IFREG | mode, 0)
    attempt(f"mknodat pipe {mode:o}", "mknodat", here, f"pipe-{mode:o}", stat.S_IFIFO | mode, 0)
allowed = {}
for mode in bits:  # the kernel ignores the bits here
    for name, first in (("mkdir", ()), ("mkdirat", (here,))):
        if name in numbers:
            allowed[f"{name} {mode:o}"] = call(name, *first, f"{name}-{mode:o}", mode)[1]
allowed["open without creating"] = call("openat", here, "numbers.json", os.O_RDONLY, 0o6755)[1]
allowed["chmod with the sticky bit"] = call("fchmodat", here, "folder-4755", 0o1777)[1]
allowed["create"] = call("openat", here, "plain", create, 0o755)[1]
how = (ctypes.c_uint64 * 3)(create, 0o4755, 0)
absent = call("openat2", here, "new", ctypes.addressof(how), ctypes.sizeof(how))[1]
newer = library.syscall(ctypes.c_long(469), ctypes.c_long(here)), ctypes.get_errno()
print(json.dumps([found, allowed, absent, newer]))
"""


@pytest.fixture(params=["bubblewrap", "landlock"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    kind: SandboxMode = request.param
    return require_sandbox(kind)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


def with_set_id_bits(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.lstat().st_mode & SET_ID]


def program(name: str) -> str:
    return shutil.which(name, path="/usr/bin:/bin") or pytest.skip(f"this machine has no {name}")


def test_no_call_sets_the_bits_on_a_file_or_folder_new_or_old(sandbox: Sandbox, folder: Path) -> None:
    machine = platform.machine()
    (folder / "numbers.json").write_text(json.dumps({**ARCHITECTURES[machine].calls, **MKDIR[machine]}))
    (folder / "attempts.py").write_text(SCRIPT)
    status, output = run(sandbox, f"umask 0; {program('python3')} attempts.py", folder)
    assert status == 0, output
    found, allowed, absent, newer = json.loads(output)
    assert len(found) >= 100
    assert {label: code for label, code in found.items() if code != errno.EPERM} == {}
    assert {label: code for label, code in allowed.items() if code} == {}
    assert (absent, newer) == (errno.ENOSYS, [-1, errno.ENOSYS])
    assert with_set_id_bits(folder) == []


def test_every_architecture_checks_each_call_that_sets_a_mode() -> None:
    everywhere = {"fchmod", "fchmodat", "fchmodat2", "mknodat", "openat", "openat2"}
    old = {"chmod", "creat", "mknod", "open"}
    assert {name: (everywhere | old) & set(each.calls) for name, each in ARCHITECTURES.items()} == {
        "x86_64": everywhere | old,
        "aarch64": everywhere,
    }


def test_the_usual_tools_work_and_fail_clearly_only_for_these_bits(sandbox: Sandbox, folder: Path) -> None:
    git, tar, install = program("git"), program("tar"), program("install")
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o755)
    script = f"""
    set -e
    cp -p tool copied; cp -r tool also
    {install} -m 750 -d made/deep; {install} -m 755 tool made/tool
    mkdir -p -m 1777 sticky; chmod -R g+w,o-r made; chmod u+x copied
    {tar} cf all.tar tool made; mkdir out; {tar} xpf all.tar -C out
    {git} init -q repository; cd repository; touch a; {git} add a
    {git} -c user.name=Ann -c user.email=ann@example.com commit -qm first; {git} gc -q; {git} clone -q . ../cloned
    echo done
    """
    assert run(sandbox, script, folder) == (0, "done\n")
    assert stat.S_IMODE((folder / "out" / "tool").stat().st_mode) == 0o755
    for command in ("chmod u+s tool", "chmod 2755 tool", f"{install} -m 4755 tool suid", "mkdir -m 2755 shared"):
        status, output = run(sandbox, command, folder)
        assert (status != 0, "Operation not permitted" in output) == (True, True), command
    assert with_set_id_bits(folder) == []


def test_an_archive_with_such_a_file_is_unpacked_without_the_bits(sandbox: Sandbox, folder: Path) -> None:
    tar = program("tar")
    (folder / "tool").write_text("content\n")
    (folder / "tool").chmod(0o4755)
    run(sandbox, f"{tar} cf all.tar tool && mkdir out", folder)
    os.unlink(folder / "tool")
    run(sandbox, f"{tar} xpf all.tar -C out", folder)
    assert (folder / "out" / "tool").read_text() == "content\n"
    assert with_set_id_bits(folder) == []


def test_npm_still_installs_a_package_with_a_program(sandbox: Sandbox, folder: Path) -> None:
    npm = program("npm")
    package = folder / "package"
    package.mkdir()
    (package / "package.json").write_text('{"name": "greeter", "version": "1.0.0", "bin": "greet.js"}')
    (package / "greet.js").write_text("#!/usr/bin/env node\nconsole.log('hello')\n")
    (folder / "package.json").write_text('{"name": "user", "version": "1.0.0"}')
    script = f"{npm} install --offline --silent --install-links ./package && ./node_modules/.bin/greeter"
    assert run(sandbox, script, folder) == (0, "hello\n")
