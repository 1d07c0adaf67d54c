"""A user at a shell, for every journey."""

from pathlib import Path

import pytest

from tests.journey.support import Person


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)
