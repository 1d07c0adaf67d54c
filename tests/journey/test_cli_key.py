"""`outrider key`: keys are shown once, listed without their secrets, and revoked for good."""

import json
import re
import stat
from pathlib import Path

import anyio
import pytest

import outrider
from outrider.cli.service import advertise_server
from outrider.store.keys import ensure_key
from outrider.store.sqlite import open_store
from outrider.testing.scripted_model import ScriptedModel
from tests.journey.support import Person

_KEY = re.compile(r"ork_([a-z2-7]{8})_[0-9a-f]{64}\n")


def first_key(home: Path) -> str:
    """As the first `outrider up` leaves it."""

    async def make() -> str | None:
        async with open_store(home) as store:
            return await ensure_key(home, store)

    return anyio.run(make) or ""


def test_a_key_is_shown_once_and_alone(person: Person) -> None:
    made = person.types("key", "create", "laptop")
    found = _KEY.fullmatch(made.out)
    assert found
    said = f"outrider: this is key {found[1]} (laptop); it cannot be shown again, so keep it now\n"
    assert (made.code, made.err) == (0, said)
    listed = person.types("key", "list")
    secret = made.out.strip().rpartition("_")[2]
    assert (listed.code, secret in listed.out, listed.out.splitlines()[1].split()[:4]) == (
        0,
        False,
        ["laptop", found[1], "owner", "chat,"],
    )
    files = [path for path in person.home.rglob("*") if path.is_file()]
    assert [path.name for path in files if secret.encode() in path.read_bytes()] == []


def test_a_key_is_made_as_it_was_asked_for(person: Person) -> None:
    words = ("--person", "bob", "--scope", "read", "--scope", "read", "--rate", "60", "--concurrent", "2")
    made = json.loads(person.types("key", "create", "probe", *words, "--spend", "5/day", "--json").out)
    assert _KEY.fullmatch(made.pop("key") + "\n")
    expected = {"name": "probe", "person": "bob", "scopes": ["read"], "rate": 60, "concurrent": 2, "used": 0}
    expected |= {"spend": "5/day", "spent": 0.0, "revoked": 0}
    assert made == {**expected, "id": made["id"], "created": made["created"]}
    assert json.loads(person.types("key", "list", "--json").out) == [made]
    assert "$0.00 of $5.00 a day" in person.types("key", "list").out
    bad = person.types("key", "create", "other", "--spend", "5/week")
    assert (bad.code, bad.out, "'5/week' is no limit" in bad.err) == (2, "", True)


def test_a_revoked_key_is_listed_as_such_and_its_name_is_free_again(person: Person) -> None:
    id = json.loads(person.types("key", "create", "laptop", "--json").out)["id"]
    again = person.types("key", "create", "laptop")
    assert (again.code, again.out) == (2, "")
    assert again.err == "outrider: there is a key called 'laptop' already; revoke it first, or choose another name\n"
    assert person.types("key", "revoke", "laptop").out == f"laptop ({id}) opens nothing any more\n"
    gone = person.types("key", "revoke", id)
    assert (gone.code, gone.err) == (2, f"outrider: no key '{id}' holds; `outrider key list` shows them\n")
    second = json.loads(person.types("key", "create", "laptop", "--json").out)["id"]
    assert person.types("key", "revoke", second).code == 0
    assert [bool(key["revoked"]) for key in json.loads(person.types("key", "list", "--json").out)] == [True, True]


def test_the_first_key_is_shown_with_how_to_use_it_until_it_is_revoked(person: Person) -> None:
    none = person.types("key")
    assert (none.code, none.out) == (2, "")
    assert "`outrider key create NAME`" in none.err
    chosen = person.types("key", environ={"OUTRIDER_API_KEY": "a-key-of-my-own"})
    assert (chosen.code, chosen.out, "OUTRIDER_API_KEY" in chosen.err) == (2, "", True)
    assert "a-key-of-my-own" not in chosen.err
    key = first_key(person.home)
    shown = person.types("key")
    assert (shown.code, shown.out, shown.err) == (0, f"{key}\n", "")
    code, told = person.types_at_a_terminal("key")
    assert (code, told.startswith(key)) == (0, True)
    assert 'curl -H "Authorization: Bearer $(outrider key)" http://127.0.0.1:8642/v1/models' in told
    assert (told.count(key), stat.S_IMODE((person.home / "api_key").stat().st_mode)) == (1, 0o600)
    assert person.types("key", "revoke", "first").code == 0
    assert ((person.home / "api_key").exists(), person.types("key").code) == (False, 2)


def test_where_no_key_can_be_shown_those_that_hold_are_pointed_to(person: Person) -> None:
    assert "`outrider up` makes the first one" in person.types("key").err
    person.types("key", "create", "laptop")
    made = person.types("key")
    assert (made.code, made.out, "outrider up" in made.err) == (2, "", False)
    assert "`outrider key list` lists yours, `outrider key create NAME` makes another" in made.err


def test_a_first_key_that_others_can_read_or_that_holds_no_longer_is_not_shown(person: Person) -> None:
    key = first_key(person.home)
    path = person.home / "api_key"
    path.chmod(0o644)
    shared = person.types("key")
    assert (shared.code, shared.out, "chmod 600" in shared.err, key in shared.err) == (2, "", True, False)
    path.chmod(0o600)
    path.write_text("ork_aaaaaaaa_" + "0" * 64)
    stale = person.types("key")
    assert (stale.code, stale.out, "holds no longer" in stale.err) == (2, "", True)


@pytest.mark.anyio
async def test_keys_are_listed_and_not_changed_while_a_python_program_uses_the_home(person: Person) -> None:
    async with outrider.open(person.home, model=ScriptedModel()) as agent:
        key = await ensure_key(person.home, agent.home.store)
        with advertise_server(person.home, "http://127.0.0.1:4711"):
            shown, listed, made = await anyio.to_thread.run_sync(
                lambda: (person.types("key"), person.types("key", "list", "--json"), person.types("key", "create", "x"))
            )
            _, told = await anyio.to_thread.run_sync(person.types_at_a_terminal, "key")
    assert "http://127.0.0.1:4711/v1/models" in told
    assert (shown.code, shown.out) == (0, f"{key}\n")
    assert [each["name"] for each in json.loads(listed.out)] == ["first"]
    assert (made.code, made.out, "Python (process" in made.err) == (75, "", True)


@pytest.mark.parametrize(
    "words",
    [
        ("create", ""),
        ("create", " padded"),
        ("create", "x", "--person", ""),
        ("create", "x", "--scope", "root"),
        ("create", "x", "--rate", "0"),
        ("revoke", ""),
        ("rewoke", "x"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_told_in_one_line(person: Person, words: tuple[str, ...]) -> None:
    ran = person.types("key", *words)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
    assert ran.err.startswith("outrider: ")
