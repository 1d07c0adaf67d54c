"""The disk fills up while a turn runs: an honest error, nothing done that was not written down, and no repair later."""

import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest

from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import Script, ScriptRule, Stall, script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import PATIENCE, Person, ended
from tests.support.mounts import small_disk
from tests.support.pay import bills_paid, install_pay
from tests.support.up import begin, say, up

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
    with ScriptedServer(said) as server, small_disk(tmp_path / "disk", "6m") as disk:
        person.uses(server.url, OUTRIDER_HOME=str(disk / "home"), PYTHONPATH=install_pay(tmp_path / "plugins"))
        running = person.begins("run", "--session", "bills", "pay the rent")
        server.wait(1)
        fill(disk / "ballast")
        server.release()
        out, err = running.communicate(timeout=60)
        assert (running.returncode, out) == (75, b"")
        assert b"is full, and nothing more can be saved; free some space, then try again." in err
        assert b"Your message is saved. To continue: outrider resume bills\n" in err
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


def test_up_says_that_the_disk_is_full_and_goes_on_by_itself_when_there_is_room(tmp_path: Path) -> None:
    slow = ScriptRule("^slow", ((Stall("headers"), says(LONG)),))
    person = Person(tmp_path)
    with ScriptedServer(Script(rules=(slow,))) as server, small_disk(tmp_path / "disk", "6m") as disk:
        person.home = disk / "home"
        person.uses(server.url, OUTRIDER_HOME=str(person.home))
        with up(person) as there, there.client() as client:
            waited = person.begins("run", "--session", "waited", "slow")
            others = [begin(client, f"s{n}") for n in range(2)]
            for session in others:
                assert say(client, session, "slow").status_code in (200, 201, 202)
            server.wait(3)
            fill(disk / "ballast")
            server.release()
            ran = ended(waited)
            assert (ran.code, ran.out) == (75, "")
            advice = "then try again. Your message is saved. To continue: outrider resume waited\n"
            assert ran.err.endswith(advice), ran.err
            status = person.types("up", "status")
            assert (status.code, "is full, and nothing more can be saved" in status.out) == (1, True), status
            assert client.get("/health").status_code == 503

            (disk / "ballast").unlink()
            deadline = time.monotonic() + PATIENCE
            while client.get("/health").status_code != 200:
                assert time.monotonic() < deadline, client.get("/health").text
                time.sleep(0.2)
            for session in ("s0", "s1", "waited"):
                assert LONG[:40] in person.types("sessions", "show", session).out
            assert person.types("up", "status").code == 0
