"""The spending of a key survives a kill: counted once, in the transaction of the entry that cost it."""

import json
import signal
from pathlib import Path

import pytest

from outrider.core.types import Usage
from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import Stall, script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.support.in_process import InProcessPerson as Person
from tests.support.up import begin, caller, entries, following, say, up

DOLLAR = Usage(input=1_000_000)


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def _spent(person: Person) -> tuple[str, float]:
    (key,) = [key for key in json.loads(person.types("key", "list", "--json").out) if key["name"] == "app"]
    return key["spend"], key["spent"]


@pytest.mark.promise("L7")
def test_a_key_at_its_spending_limit_starts_no_turn_also_after_a_kill(person: Person) -> None:
    looks = says("let me look", call("list_files"), usage=DOLLAR)
    with ScriptedServer(script(looks, [Stall("stream"), says("all is well", usage=DOLLAR)])) as model:
        prices = {"OUTRIDER_MODEL_PRICE_INPUT": "1", "OUTRIDER_MODEL_PRICE_OUTPUT": "0"}
        person.uses(model.url, **prices)
        key = person.types("key", "create", "app", "--spend", "1.5/day").out.strip()
        other = person.types("key", "create", "other").out.strip()
        with up(person) as running, caller(running.url, key) as client:
            session = begin(client, "s")
            assert say(client, session, "how are things?").status_code == 202
            model.wait(2)  # the first reply is stored, the second is being written
            assert _spent(person) == ("1.5/day", 1.0)
            running.ends(signal.SIGKILL)
        assert _spent(person) == ("1.5/day", 1.0)
        with up(person) as running, caller(running.url, key) as client:
            with following(client, session, until="idle") as events:
                seen = entries(events)
            # The turn exceeds the limit and is not interrupted; it is the last one.
            assert (seen[-2]["text"], seen[-1]["outcome"]) == ("all is well", "done")
            assert _spent(person) == ("1.5/day", 2.0)
            refused = say(client, session, "and now?")
            running.ends(signal.SIGKILL)
        with up(person) as running, caller(running.url, key) as client, caller(running.url, other) as owner:
            again = say(client, session, "and now?")
            assert say(owner, session, "and now?").status_code == 202
        assert [(r.status_code, r.json()["error"]["code"]) for r in (refused, again)] == [
            (429, "insufficient_quota")
        ] * 2
