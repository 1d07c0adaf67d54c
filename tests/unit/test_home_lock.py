"""The lock of a home."""

from pathlib import Path

import pytest

from outrider.core.errors import HomeBusy
from outrider.system.lock import last_holder, lock_home

pytestmark = pytest.mark.anyio


async def test_a_locked_home_names_its_owner_and_what_it_serves(tmp_path: Path) -> None:
    async with lock_home(tmp_path, "a test", 0.0, serves="read"):
        assert (last_holder(tmp_path).what, last_holder(tmp_path).serves) == ("a test", "read")
        with pytest.raises(HomeBusy, match=r"a test \(process \d+\) has been using"):
            async with lock_home(tmp_path, "another test", 0.0):
                pass


async def test_a_lock_file_of_an_earlier_version_says_that_its_owner_serves_nobody(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text('{"pid": 7, "what": "outrider run", "accepts_clients": true}')
    assert (last_holder(tmp_path).pid, last_holder(tmp_path).serves) == (7, "")
