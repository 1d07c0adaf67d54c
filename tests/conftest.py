"""Fixtures and marks for every test."""

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.machine import missing

# How long an example takes depends on the machine, so there is no deadline. `--hypothesis-profile=long` tries more.
settings.register_profile("check", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("check"), max_examples=2_000)
settings.load_profile("check")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--program", default="", help="run the suite of runtimes over this program; see ./dev runtimes")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


QUICK = {"unit", "contract", "shape"}
"""The folders that `./dev test` runs whole; of the others it runs one journey for each command."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    for item in items:
        if item.path.relative_to(tests).parts[0] in QUICK or item.get_closest_marker("command"):
            item.add_marker("quick")


def pytest_collection_finish() -> None:
    """Spare the garbage collector all that was imported and collected, which stays to the end."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose machine lacks what its `needs` marks name."""
    for mark in item.iter_markers("needs"):
        for need in mark.args:
            if reason := missing(need):
                pytest.skip(reason)
