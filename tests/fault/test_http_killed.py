"""kill -9 of `outrider up` at every fail point of a turn that a client streams or waits for: the turn still completes.

Effects are counted by the tool's own ledger, the stream is judged by the official client's own accumulator.
"""

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.lib.streaming.responses._responses import ResponseStreamState

from outrider.core.prompt import UNKNOWN
from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import PATIENCE, Person
from tests.support.cutting import until
from tests.support.pay import bills_paid, install_pay
from tests.support.up import Running, up

pytestmark = [pytest.mark.promise("L3"), pytest.mark.promise("L4")]

POINTS = [
    "turn_started",
    "mid_reply",
    "mid_reply:4",
    "calls_not_recorded",
    "call_intent_recorded",
    "result_not_recorded",
    "result_recorded",
    "result_recorded:2",
    "reply_not_recorded",
    "reply_recorded",
]
"""All of them for a live stream, which is cut at a different event at each of them."""
# After the kill, a background response and a completion are read from the journal, which is in the same state after
# both points of a pair: (mid_reply, mid_reply:4), (calls_not_recorded, reply_not_recorded), (call_intent_recorded,
# result_not_recorded), (result_recorded, result_recorded:2). Each of the two takes one point of each pair.
POINTS_OF_BACKGROUND = [
    "turn_started",
    "mid_reply",
    "calls_not_recorded",
    "call_intent_recorded",
    "result_recorded",
    "reply_recorded",
]
POINTS_OF_CHAT = [
    "turn_started",
    "mid_reply:4",
    "reply_not_recorded",
    "result_not_recorded",
    "result_recorded:2",
    "reply_recorded",
]
REPLIES = ["I look first, then pay the rent", "All bills are paid."]
SCRIPT = script(says(REPLIES[0], call("list"), call("pay", bill="rent")), says(REPLIES[1]))


@pytest.fixture
def person(tmp_path: Path) -> Person:
    retrieved = Person(tmp_path)
    retrieved.environ["PYTHONPATH"] = install_pay(tmp_path / "plugins")
    return retrieved


class Client:
    """The official client, which resumes where it was cut."""

    def __init__(self, person: Person, **order: Any) -> None:
        self.events: list[Any] = []
        self._person = person
        self._order: Any = {"model": "outrider", "input": "pay the bills", **order}
        self._order |= {"extra_headers": {"Idempotency-Key": "monday"}}

    def talks(self, running: Running) -> openai.OpenAI:
        key = (self._person.home / "api_key").read_text().strip()
        return openai.OpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE)

    def asks(self, running: Running) -> Any:
        """The first version of the response; None when there was no event."""
        with suppress(openai.APIConnectionError), self.talks(running) as client:
            responses: Any = client.responses
            return responses.create(**self._order)

    def hears(self, running: Running, is_enough: Callable[[Any], bool] = lambda event: False) -> None:
        """The stream from the last event, to its end or to where the process died."""
        with suppress(openai.APIConnectionError, httpx2.TransportError), self.talks(running) as client:
            responses: Any = client.responses
            if self.events:
                id, number = self.events[0].response.id, self.events[-1].sequence_number
                stream = responses.retrieve(id, stream=True, starting_after=number)
            else:
                stream = responses.create(**self._order, stream=True)
            with stream:
                for event in stream:
                    self.events.append(event)
                    if is_enough(event):
                        return


def judge(events: list[Any]) -> Any:
    """The final response of a consistent stream: every message in it equals its deltas."""
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    state: Any = ResponseStreamState(input_tools=openai.omit, text_format=openai.omit)
    for event in events:
        state.handle_event(event)
    assert events[-1].type == "response.completed"
    final = events[-1].response
    words = [event for event in events if event.type == "response.output_text.delta"]
    for item in final.output:
        text = "".join(event.delta for event in words if event.item_id == item.id)
        assert item.content == [] or text == item.content[0].text
    return final


def assert_paid_at_most_once(person: Person, model: ScriptedServer) -> None:
    """Where the result of a call is unknown, the prompt says so."""
    (book,) = [*person.home.glob("workspaces/*")]
    paid = bills_paid(book)
    assert paid == ["rent"] or (paid == [] and UNKNOWN in str([request.body for request in model.requests]))
    assert len([one for one in model.requests if len(one.body["messages"]) == 2]) <= 2


@pytest.mark.promise("L8")
@pytest.mark.parametrize("point", POINTS)
def test_a_stream_cut_by_a_kill_is_resumed_and_consistent_as_a_whole(person: Person, point: str) -> None:
    with ScriptedServer(SCRIPT) as model:
        person.uses(model.url)
        client = Client(person)
        with up(person, environ={"OUTRIDER_FAIL": point}) as running:
            client.hears(running)
            assert running.process.wait(PATIENCE) == -signal.SIGKILL
        with up(person) as running:
            client.hears(running)
            final = judge(client.events)
            with client.talks(running) as again:
                retrieved = again.responses.retrieve(final.id)
        assert (final.output_text, final.status) == ("\n\n".join(REPLIES), "completed")
        assert (retrieved.output_text, retrieved.usage) == (final.output_text, final.usage)
        assert_paid_at_most_once(person, model)


@pytest.mark.promise("L8")
@pytest.mark.parametrize("point", POINTS_OF_BACKGROUND)
def test_a_background_response_survives_a_kill_and_is_polled_and_streamed(person: Person, point: str) -> None:
    with ScriptedServer(SCRIPT) as model:
        person.uses(model.url)
        client = Client(person, background=True)
        with up(person, environ={"OUTRIDER_FAIL": point}) as running:
            text = client.asks(running)
            assert running.process.wait(PATIENCE) == -signal.SIGKILL
        with up(person) as running, client.talks(running) as again:
            made = text or client.asks(running)

            def poll() -> Any:
                retrieved = again.responses.retrieve(made.id)
                return retrieved if retrieved.status not in ("queued", "in_progress") else None

            retrieved = until(poll)
            client.hears(running)
            assert client.asks(running) == retrieved
        assert (retrieved.status, retrieved.output_text) == ("completed", "\n\n".join(REPLIES))
        assert judge(client.events) == retrieved
        assert_paid_at_most_once(person, model)


@pytest.mark.promise("L1b")
@pytest.mark.parametrize("point", POINTS_OF_CHAT)
def test_a_completion_cut_by_a_kill_is_complete_when_repeated_with_its_key(person: Person, point: str) -> None:
    order: dict[str, Any] = {"model": "outrider", "messages": [{"role": "user", "content": "pay the bills"}]}

    def ask(running: Running, *, stream: bool) -> list[Any]:
        """The chunks or the completion, as far as received."""
        received: list[Any] = []
        with running.client() as client, suppress(httpx2.TransportError):
            headers = {"idempotency-key": "monday"}
            path, body = "/v1/chat/completions", {**order, "stream": stream}
            with client.stream("POST", path, json=body, headers=headers) as answer:
                lines = (line.removeprefix("data: ") for line in answer.iter_lines())
                received += [json.loads(line) for line in lines if line.startswith("{")]
        return received

    with ScriptedServer(SCRIPT) as model:
        person.uses(model.url)
        with up(person, environ={"OUTRIDER_FAIL": point}) as running:
            cut = ask(running, stream=True)
            assert running.process.wait(PATIENCE) == -signal.SIGKILL
        with up(person) as running:
            chunks = ask(running, stream=True)
            (whole,) = ask(running, stream=False)
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert text == whole["choices"][0]["message"]["content"] == "\n\n".join(REPLIES)
        assert {one["id"] for one in (*cut, *chunks)} == {whole["id"]}
        assert_paid_at_most_once(person, model)


LOST = "It seems to me that none of this will ever be kept by anyone at all"


@pytest.mark.promise("L12")
@pytest.mark.parametrize("again", ["Kept.", "It seems to me that this time it is quite another thing " * 3])
@pytest.mark.parametrize("is_background", [False, True])
def test_text_lost_in_a_kill_is_not_mixed_with_the_text_that_replaces_it(
    person: Person, again: str, is_background: bool
) -> None:
    with ScriptedServer(script([says(LOST, delay=0.2), says(again)])) as model:
        person.uses(model.url)
        client = Client(person, background=is_background)
        with up(person) as running:
            client.hears(running, lambda event: event.type == "response.output_text.delta" and event.delta == "none ")
            running.ends(signal.SIGKILL)
        received = len(client.events)
        with up(person) as running:
            client.hears(running)
            final = judge(client.events)
            with client.talks(running) as official:
                retrieved = official.responses.retrieve(final.id)
        void, message = final.output
        assert (final.output_text, retrieved.output_text) == (again, again)
        assert (void.id, void.status, void.content) == (client.events[2].item.id, "incomplete", [])
        assert [(event.type, event.item.id) for event in client.events[received : received + 2]] == [
            ("response.output_item.done", void.id),
            ("response.output_item.added", message.id),
        ]
        assert len(model.requests) == 2


@pytest.mark.promise("L8")
def test_a_stream_continues_after_a_kill_when_the_model_repeats_the_same_text(person: Person) -> None:
    with ScriptedServer(script(says(LOST, delay=0.1))) as model:
        person.uses(model.url)
        client = Client(person)
        with up(person) as running:
            client.hears(running, lambda event: event.type == "response.output_text.delta" and event.delta == "none ")
            running.ends(signal.SIGKILL)
        with up(person) as running:
            client.hears(running)
            late = Client(person)
            late.hears(running)
        assert client.events == late.events
        assert (judge(client.events).output_text, len(model.requests)) == (LOST, 2)
