"""The disk fills up while a turn runs: an honest error, nothing done that was not written down, and no repair later."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from outrider.models.script_server import ScriptServer, Stall, script
from outrider.models.scripted import call, says
from tests.journey.support import Person
from tests.support.mounts import small_disk
from tests.support.pay import bills_paid, install_pay

pytestmark = [pytest.mark.promise("L1"), pytest.mark.promise("L4"), pytest.mark.promise("L12")]

LONG = "a long explanation " * 20_000


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(ballast.parent).free == 0


def test_a_turn_cut_short_by_a_full_disk_is_finished_when_there_is_room_again(tmp_path: Path) -> None:
    said = script([Stall("headers"), says(LONG, call("pay", bill="rent"))], says("The rent is paid."))
    person = Person(tmp_path)
    with ScriptServer(said) as server, small_disk(tmp_path / "disk", "6m") as disk:
        person.uses(server.url, OUTRIDER_HOME=str(disk / "home"), PYTHONPATH=install_pay(tmp_path / "plugins"))
        running = person.begins("run", "--session", "bills", "pay the rent")
        server.wait(1)
        fill(disk / "ballast")
        server.release()
        out, err = running.communicate(timeout=60)
        assert (running.returncode, out) == (75, b"")
        assert b"is full, so nothing was saved; free some space" in err
        assert b"Traceback" not in err
        assert bills_paid(person.project) == []

        refused = person.types("run", "--session", "other", "-", stdin=LONG.encode())
        assert refused.code == 75
        assert "is full" in refused.err

        (disk / "ballast").unlink()
        finished = person.types("resume")
        assert (finished.code, bills_paid(person.project)) == (0, ["rent"]), finished.err
        assert "The rent is paid." in finished.out
        assert LONG[:40] not in person.types("sessions", "show", "other").out
