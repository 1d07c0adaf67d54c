"""What is shipped is what is here: the wheel is whole, versions agree, and no machine left its traces."""

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import outrider
from outrider.runtimes.base import RuntimeProbe
from tests.shape.repository import ROOT, SRC, name_of, tracked

_PINNED = re.compile(r"^(?P<name>[a-z0-9._-]+)==(?P<version>[^ ;\\]+)", re.MULTILINE)
_TRACES = re.compile(
    r"(?<!\w)/root/|/home/(?!alice|ann|bob|person)\w|/Users/\w|[A-Z]:\\+Users"
    r"|pypi\.org|pythonhosted\.org|registry\.npmjs|--(extra-)?index-url|--find-links"
)


def test_the_changelog_opens_with_this_version() -> None:
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert versions[:1] == [outrider.__version__]


def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("*.whl")
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("outrider/")}
    here = {path.relative_to(SRC.parent).as_posix() for path in tracked() if path.is_relative_to(SRC)}
    assert (here - shipped, "outrider/py.typed" in shipped) == (set(), True)


def test_every_entry_point_leads_somewhere() -> None:
    project = _project()["project"]
    groups: dict[str, dict[str, str]] = {"scripts": project["scripts"], **project["entry-points"]}
    points = [EntryPoint(name, target, group) for group, named in groups.items() for name, target in named.items()]
    found = [(point, point.load()) for point in points]
    assert [
        point for point, it in found if not callable(it) and not hasattr(it, "run") and not isinstance(it, RuntimeProbe)
    ] == []


def test_both_lock_files_choose_the_same_versions() -> None:
    run, dev = _pinned("requirements.lock"), _pinned("requirements-dev.lock")
    assert {name: (version, dev.get(name)) for name, version in run.items() if dev.get(name) != version} == {}


def test_every_dependency_is_locked() -> None:
    project = _project()
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    names = {re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower() for requirement in wanted}
    assert sorted(names - _pinned("requirements.lock").keys()) == []


def test_no_tracked_file_tells_of_the_machine_it_was_written_on() -> None:
    here = re.compile(f"{_TRACES.pattern}|{re.escape(str(ROOT))}/")
    found = [
        f"{name_of(path)}:{number}: {line.strip()[:100]}"
        for path in tracked()
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if here.search(line)
    ]
    assert found == []


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _pinned(name: str) -> dict[str, str]:
    return dict(_PINNED.findall((ROOT / name).read_text(encoding="utf-8")))
