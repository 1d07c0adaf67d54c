"""`outrider key`: keys are shown once, listed without their secrets, and revoked permanently."""

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
from tests.support.in_process import InProcessPerson as Person

_KEY = re.compile(r"ork_([a-z2-7]{8})_[0-9a-f]{64}\n")


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def create_first_key(home: Path) -> str:
    """Create the key that the first `outrider up` creates."""

    async def create() -> str | None:
        async with open_store(home) as store:
            return await ensure_key(home, store)

    return anyio.run(create) or ""


@pytest.mark.command("key")
def test_a_key_is_shown_once_and_alone(person: Person) -> None:
    created = person.types("key", "create", "laptop")
    match = _KEY.fullmatch(created.out)
    assert match
    notice = f"outrider: this is key {match[1]} (laptop); copy it now, it cannot be shown again\n"
    assert (created.code, created.err) == (0, notice)
    table = person.types("key", "list")
    secret = created.out.strip().rpartition("_")[2]
    row = table.out.splitlines()[1].split()
    assert (table.code, secret in table.out) == (0, False)
    assert (row[:4], row[-1]) == (["laptop", match[1], "owner", "chat,"], "active")
    files = [path for path in person.home.rglob("*") if path.is_file()]
    assert [path.name for path in files if secret.encode() in path.read_bytes()] == []


def test_a_key_has_the_scopes_and_limits_it_was_created_with(person: Person) -> None:
    words = ("--person", "bob", "--scope", "read", "--scope", "read", "--rate", "60", "--concurrent", "2")
    created = json.loads(person.types("key", "create", "probe", *words, "--spend", "5/day", "--json").out)
    assert _KEY.fullmatch(created.pop("key") + "\n")
    expected = {"name": "probe", "person": "bob", "scopes": ["read"], "rate": 60, "concurrent": 2, "used": 0}
    expected |= {"spend": "5/day", "spent": 0.0, "revoked": 0}
    assert created == {**expected, "id": created["id"], "created": created["created"]}
    assert json.loads(person.types("key", "list", "--json").out) == [created]
    assert "$0.00 of $5.00 a day" in person.types("key", "list").out
    bad = person.types("key", "create", "other", "--spend", "5/week")
    assert (bad.code, bad.out, "'5/week' is not a spending limit" in bad.err) == (2, "", True)


def test_a_revoked_key_is_listed_as_revoked_and_its_name_can_be_reused(person: Person) -> None:
    id = json.loads(person.types("key", "create", "laptop", "--json").out)["id"]
    again = person.types("key", "create", "laptop")
    assert (again.code, again.out) == (2, "")
    assert again.err == "outrider: a key named 'laptop' already exists; revoke it first, or choose another name\n"
    assert person.types("key", "revoke", "laptop").out == f"revoked laptop ({id})\n"
    gone = person.types("key", "revoke", id)
    problem = f"outrider: there is no active key '{id}'; `outrider key list` shows all keys\n"
    assert (gone.code, gone.err) == (2, problem)
    second = json.loads(person.types("key", "create", "laptop", "--json").out)["id"]
    assert person.types("key", "revoke", second).code == 0
    assert [bool(key["revoked"]) for key in json.loads(person.types("key", "list", "--json").out)] == [True, True]


@pytest.mark.needs("terminal")
def test_the_first_key_is_shown_with_instructions_until_it_is_revoked(person: Person) -> None:
    none = person.types("key")
    assert (none.code, none.out) == (2, "")
    assert "`outrider key create NAME`" in none.err
    chosen = person.types("key", environ={"OUTRIDER_API_KEY": "a-key-of-my-own"})
    assert (chosen.code, chosen.out, "OUTRIDER_API_KEY" in chosen.err) == (2, "", True)
    assert "a-key-of-my-own" not in chosen.err
    key = create_first_key(person.home)
    piped = person.types("key")
    assert (piped.code, piped.out, piped.err) == (0, f"{key}\n", "")
    code, screen = person.types_at_a_terminal("key")
    assert (code, screen.startswith(key)) == (0, True)
    assert 'curl -H "Authorization: Bearer $(outrider key)" http://127.0.0.1:8642/v1/models' in screen
    assert (screen.count(key), stat.S_IMODE((person.home / "api_key").stat().st_mode)) == (1, 0o600)
    assert person.types("key", "revoke", "first").code == 0
    assert ((person.home / "api_key").exists(), person.types("key").code) == (False, 2)


def test_where_no_key_can_be_shown_the_list_of_keys_is_mentioned(person: Person) -> None:
    assert "`outrider up` creates the first one" in person.types("key").err
    person.types("key", "create", "laptop")
    ran = person.types("key")
    assert (ran.code, ran.out, "outrider up" in ran.err) == (2, "", False)
    assert "`outrider key list` lists your keys, `outrider key create NAME` creates one" in ran.err


def test_a_first_key_that_others_can_read_or_that_is_not_valid_is_not_shown(person: Person) -> None:
    key = create_first_key(person.home)
    path = person.home / "api_key"
    path.chmod(0o644)
    shared = person.types("key")
    assert (shared.code, shared.out, "chmod 600" in shared.err, key in shared.err) == (2, "", True, False)
    path.chmod(0o600)
    path.write_text("ork_aaaaaaaa_" + "0" * 64)
    stale = person.types("key")
    assert (stale.code, stale.out, "is not valid" in stale.err) == (2, "", True)


@pytest.mark.needs("terminal")
@pytest.mark.anyio
async def test_keys_are_listed_and_not_changed_while_a_python_program_uses_the_home(person: Person) -> None:
    async with outrider.open(person.home, model=ScriptedModel()) as agent:
        key = await ensure_key(person.home, agent.home.store)
        with advertise_server(person.home, "http://127.0.0.1:4711"):
            printed, table, created = await anyio.to_thread.run_sync(
                lambda: (person.types("key"), person.types("key", "list", "--json"), person.types("key", "create", "x"))
            )
            _, screen = await anyio.to_thread.run_sync(person.types_at_a_terminal, "key")
    assert "http://127.0.0.1:4711/v1/models" in screen
    assert (printed.code, printed.out) == (0, f"{key}\n")
    assert [each["name"] for each in json.loads(table.out)] == ["first"]
    assert (created.code, created.out, "Python (process" in created.err) == (75, "", True)


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
def test_a_mistake_is_reported_in_one_line(person: Person, words: tuple[str, ...]) -> None:
    ran = person.types("key", *words)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
    assert ran.err.startswith("outrider: ")
