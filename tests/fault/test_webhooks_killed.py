"""kill -9 of `outrider up` around sending webhooks: a receiver that remembers ids processes every response once."""

import random
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.journey.support import Person
from tests.support.receiver import SECRET, Answer, ReceivedRequest, Receiver, receiving
from tests.support.up import up

pytestmark = pytest.mark.promise("L5")


@pytest.fixture
def person(tmp_path: Path) -> Person:
    user = Person(tmp_path)
    user.uses("", "practice", OUTRIDER_WEBHOOK_SECRET=SECRET)
    return user


def ask(client: httpx2.Client, key: str) -> Any:
    """Create a background response, or repeat the request after a cut: the response's id."""
    order = {"model": "outrider", "input": f"job {key}", "background": True}
    made = client.post("/v1/responses", json=order, headers={"idempotency-key": key})
    assert made.status_code == 200, made.text
    return made.json()["id"]


def deliveries_by_response(requests: Sequence[ReceivedRequest]) -> dict[str, set[tuple[str, bytes]]]:
    """The ids and events that were received for each response."""
    deliveries: dict[str, set[tuple[str, bytes]]] = {}
    for one in requests:
        assert one.event().data.id == one.response
        deliveries.setdefault(one.response, set()).add((one.id, one.body))
    return deliveries


def check(receiver: Receiver, responses: set[str]) -> None:
    deliveries = deliveries_by_response(receiver.wait_for(*responses))
    assert {response: len(events) for response, events in deliveries.items()} == dict.fromkeys(responses, 1)


@pytest.mark.parametrize(
    ("point", "attempts"),
    [
        pytest.param("reply_recorded", 0, id="the end is not recorded"),
        pytest.param("webhook_not_sent", 0, id="not sent"),
        pytest.param("webhook_sent", 1, id="sent and not marked"),
    ],
)
def test_a_webhook_is_sent_again_under_its_id_after_a_kill_around_sending(
    person: Person, point: str, attempts: int
) -> None:
    with receiving() as receiver:
        person.environ["OUTRIDER_WEBHOOK_URL"] = receiver.url
        with up(person, environ={"OUTRIDER_FAIL": point}) as running, running.client() as client:
            made = ask(client, "a")
            assert running.process.wait(60) == -9
        assert len(receiver.requests) == attempts
        with up(person) as running:
            receiver.wait(attempts + 1)
            assert running.ends().code == 0
        check(receiver, {made})


def test_a_webhook_is_sent_again_under_its_id_after_a_kill_after_a_failed_attempt(person: Person) -> None:
    with receiving(Answer(500)) as receiver:
        person.environ["OUTRIDER_WEBHOOK_URL"] = receiver.url
        with up(person, environ={"OUTRIDER_FAIL": "webhook_sent"}) as running, running.client() as client:
            made = ask(client, "a")
            assert running.process.wait(60) == -9
        with up(person):
            receiver.wait(2)
        check(receiver, {made})


@pytest.mark.timeout(300)
def test_every_accepted_response_is_delivered_under_one_id_over_repeated_kills(person: Person) -> None:
    dice = random.Random(7)
    responses: set[str] = set()
    with receiving() as receiver:
        person.environ["OUTRIDER_WEBHOOK_URL"] = receiver.url
        for round in range(8):
            point = dice.choice(
                ["webhook_not_sent", "webhook_sent", "reply_not_recorded", "turn_started", "input_committed"]
            )
            environ = {"OUTRIDER_FAIL": f"{point}:{dice.randint(1, 8)}"}
            with up(person, environ=environ) as running, running.client() as client:
                for number in range(6):
                    try:
                        responses.add(ask(client, f"{round}-{number}"))
                    except httpx2.TransportError:  # killed: what was not acknowledged is not owed
                        break
                with suppress(subprocess.TimeoutExpired):
                    running.process.wait(dice.uniform(0.0, 0.3))  # any moment will do
                running.process.kill()
        accepted = set(responses)
        with up(person) as running, running.client() as client:
            for round in range(8):  # repeat the request after each lost connection
                responses |= {ask(client, f"{round}-{number}") for number in range(6)}
            check(receiver, responses)
    assert len(accepted) > 8
    assert (accepted <= responses, len(responses)) == (True, 48)
