"""Responses as the official OpenAI client sees them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
from openai import AsyncOpenAI

from outrider.app.agent import Agent
from outrider.channels.http.openai.responses import ENDPOINTS
from outrider.core.errors import Refused
from outrider.core.events import Input
from outrider.core.prompt import AssistantMessage, ToolMessage, UserMessage
from outrider.core.types import Usage
from outrider.testing.scripted_model import ScriptedModel, call, fails, says, stalls
from tests.support.http import serving
from tests.support.openai_home import client_of
from tests.support.tasking import open_scripted

pytestmark = pytest.mark.anyio

RING: Any = {
    "type": "function",
    "name": "ring",
    "description": "Ring a bell.",
    "parameters": {"type": "object", "properties": {"times": {"type": "integer"}}},
    "strict": False,
}


class ResponsesHome:
    """A home served over HTTP and a client of it."""

    def __init__(self, agent: Agent, client: AsyncOpenAI, url: str, model: ScriptedModel) -> None:
        self.agent, self.client, self.url, self.model = agent, client, url, model

    async def ask(self, items: Any, **more: Any) -> Any:
        create: Any = self.client.responses.create
        with anyio.fail_after(60):
            return await create(model="outrider", input=items, **more)

    async def events(self, items: Any, **more: Any) -> list[Any]:
        return [event async for event in await self.ask(items, stream=True, **more)]

    async def again(self, id: str, after: int | None = None) -> list[Any]:
        retrieve: Any = self.client.responses.retrieve
        more = {} if after is None else {"starting_after": after}
        with anyio.fail_after(60):
            return [event async for event in await retrieve(id, stream=True, **more)]

    async def until(self, id: str, *statuses: str) -> Any:
        with anyio.fail_after(60):
            while (response := await self.client.responses.retrieve(id)).status not in statuses:
                await anyio.sleep(0.01)
        return response


@asynccontextmanager
async def responses_home(folder: Path, *lines: Any) -> AsyncGenerator[ResponsesHome]:
    model = ScriptedModel(*lines)
    async with (
        open_scripted(folder, model) as agent,
        serving(agent, ENDPOINTS) as url,
        client_of(url, max_retries=0) as client,
    ):
        yield ResponsesHome(agent, client, url, model)


def text_of(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


async def test_a_response_has_text_and_usage_and_can_be_retrieved(tmp_path: Path) -> None:
    line = says("hello there", usage=Usage(10, 3, cached=4, reasoning=1))
    async with responses_home(tmp_path, line) as home:
        made = await home.ask("hi", instructions="speak plainly")
        response = await home.client.responses.retrieve(made.id)
        items = [item async for item in home.client.responses.input_items.list(made.id)]
    assert (made.status, made.output_text, made.model, made.object) == (
        "completed",
        "hello there",
        "outrider",
        "response",
    )
    assert (made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens) == (10, 3, 13)
    assert made.usage.input_tokens_details.cached_tokens == 4
    assert made.instructions == "speak plainly"
    assert home.model.prompts[0].system.endswith("speak plainly")
    assert response == made
    assert [(item.type, item.content[0].text) for item in items] == [("message", "hi")]  # type: ignore[union-attr]


async def test_a_stream_has_everything_in_order_with_increasing_numbers(tmp_path: Path) -> None:
    async with responses_home(tmp_path, says("one two three")) as home:
        events = await home.events("count")
        response = await home.client.responses.retrieve(events[0].response.id)
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert len(events) > len(kinds) + 1
    assert text_of(events) == "one two three"
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert events[-1].response == response


async def test_a_stream_resumed_after_any_event_has_exactly_the_rest(tmp_path: Path) -> None:
    lines = says("let me look", call("list", path=".")), says("now I ring", call("ring", times=1))
    async with responses_home(tmp_path, *lines) as home:
        events = await home.events("look and ring", tools=[RING])
        id = events[0].response.id
        for at, last in enumerate(events):
            rest = await home.again(id, last.sequence_number)
            assert text_of(rest) == text_of(events[at + 1 :])
            others = [event for event in events[at + 1 :] if event.type != "response.output_text.delta"]
            assert [event for event in rest if event.type != "response.output_text.delta"] == others
        whole = await home.again(id)
    assert text_of(whole) == "let me look\n\nnow I ring"
    assert kinds_of(whole)[-5:] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_a_sequence_number_that_was_never_sent_is_refused(tmp_path: Path) -> None:
    async with responses_home(tmp_path, says("hello")) as home:
        made = await home.ask("hi")
        with pytest.raises(openai.BadRequestError) as refused:
            await home.again(made.id, 999_999_999)
    assert refused.value.code == "invalid_cursor"


def kinds_of(events: list[Any]) -> list[str]:
    return [event.type for event in events]


async def test_a_response_says_whether_it_is_background_and_stored(tmp_path: Path) -> None:
    async with responses_home(tmp_path, says("one"), says("two"), says("three")) as home:
        asked = await home.ask("hi", background=True)
        made = [await home.until(asked.id, "completed"), await home.ask("hi"), await home.ask("hi", store=False)]
    assert [(one.background, one.model_dump()["store"]) for one in (asked, *made)] == [
        (True, True),
        (True, True),
        (False, True),
        (False, False),
    ]


async def test_a_background_response_is_polled(tmp_path: Path) -> None:
    held = stalls("working")
    async with responses_home(tmp_path, held, says("never")) as home:
        made = await home.ask("go", background=True)
        assert made.status in ("queued", "in_progress")
        with anyio.fail_after(60):
            await held.reached.wait()
        assert (await home.client.responses.retrieve(made.id)).status == "in_progress"
        held.release()
        response = await home.until(made.id, "completed", "failed")
    assert (response.status, response.id) == ("completed", made.id)


async def test_a_client_that_lost_its_connection_resumes_with_the_rest(tmp_path: Path) -> None:
    held = stalls("thinking it")
    async with responses_home(tmp_path, held, says("thinking it through")) as home:
        stream, received = await home.ask("go", stream=True), list[Any]()
        async for event in stream:
            received.append(event)
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        held.release()
        rest = await home.again(received[0].response.id, received[-1].sequence_number)
        done = await home.client.responses.retrieve(received[0].response.id)
    assert rest[-1].type == "response.completed"
    assert text_of(received + rest) == done.output_text == "thinking it through"
    assert len(home.model.prompts) == 1


async def test_a_stream_cut_by_a_restart_says_so_and_is_resumed_afterwards(tmp_path: Path) -> None:
    held, received = stalls("thinking it"), list[Any]()
    async with responses_home(tmp_path, held, says("never")) as home:
        with anyio.fail_after(60):
            async for event in await home.ask("go", stream=True):
                received.append(event)
                if event.type == "response.output_text.delta":
                    await home.agent.drain("a restart is under way")
    *received, error = received
    assert (error.type, error.message, error.sequence_number) == (
        "error",
        "a restart is under way",
        received[-1].sequence_number,
    )
    async with responses_home(tmp_path, says("thinking it through")) as home:
        await home.agent.resume_all()
        rest = await home.again(received[0].response.id, error.sequence_number)
    assert text_of(received + rest) == "thinking it through"
    assert rest[-1].type == "response.completed"


async def test_text_retracted_in_a_stream_is_corrected_by_its_final_events(tmp_path: Path) -> None:
    held = stalls("a long wrong beginning")
    async with responses_home(tmp_path, held, says("short")) as home:
        received = list[Any]()
        async for event in await home.ask("go", stream=True):
            received.append(event)
            if event.type == "response.output_text.delta":
                held.release()
    numbers = [event.sequence_number for event in received]
    assert numbers == sorted(set(numbers))
    assert [event.text for event in received if event.type == "response.output_text.done"] == ["short"]
    assert received[-1].response.output_text == "short"


async def test_only_the_last_response_can_be_continued(tmp_path: Path) -> None:
    async with responses_home(tmp_path, says("hello Ann"), says("you are Ann")) as home:
        first = await home.ask("I am Ann")
        headers = {"Idempotency-Key": "k"}
        second = await home.ask("who am I?", previous_response_id=first.id, extra_headers=headers)
        again = await home.ask("who am I?", previous_response_id=first.id, extra_headers=headers)
        with pytest.raises(openai.BadRequestError, match=second.id):
            await home.ask("and I?", previous_response_id=first.id)
        assert (await home.client.responses.retrieve(first.id)) == first
        with pytest.raises(openai.ConflictError):
            await home.client.responses.delete(first.id)
    assert (second.output_text, again) == ("you are Ann", second)
    messages = [UserMessage("I am Ann"), AssistantMessage("hello Ann"), UserMessage("who am I?")]
    assert [list(prompt.messages) for prompt in home.model.prompts] == [messages[:1], messages]


async def test_of_two_requests_that_continue_one_response_at_once_one_is_refused(tmp_path: Path) -> None:
    async with responses_home(tmp_path, *(says(f"answer {number}") for number in range(9))) as home:
        first = await home.ask("one")
        made: list[Any] = []
        refused: list[openai.BadRequestError] = []

        async def go_on(number: int) -> None:
            try:
                made.append(await home.ask(f"two, {number}", previous_response_id=first.id))
            except openai.BadRequestError as error:
                refused.append(error)

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(go_on, number)
        (session,) = await home.agent.sessions()
        messages = [entry.body for entry in await home.agent.journal(session) if isinstance(entry.body, Input)]
    assert ([response.output_text for response in made], len(messages)) == (["answer 1"], 2)
    assert [error.code for error in refused] == ["not_last"] * 7
    assert all(made[0].id in error.message for error in refused)


async def test_a_conversation_is_a_session_by_its_name(tmp_path: Path) -> None:
    async with responses_home(tmp_path, says("one"), says("two")) as home:
        await home.ask("first", conversation="diary")
        second = await home.ask([{"role": "user", "content": "second"}], conversation={"id": "diary"})
        (session,) = await home.agent.sessions()
    assert (second.output_text, session.name, len(home.model.prompts[1].messages)) == ("two", "diary", 3)


@pytest.mark.parametrize("way", ["previous", "conversation", "history"])
async def test_a_client_tool_is_run_by_the_client_and_the_turn_continues(tmp_path: Path, way: str) -> None:
    reference = {"conversation": "s"} if way == "conversation" else {}
    async with responses_home(tmp_path, says("ringing", call("ring", times=2)), says("it rang")) as home:
        first = await home.ask("ring", tools=[RING], **reference)
        message, called = first.output
        assert (first.status, message.content[0].text) == ("completed", "ringing")
        assert (called.type, called.name, called.arguments) == ("function_call", "ring", '{"times":2}')
        result = {"type": "function_call_output", "call_id": called.call_id, "output": "ding dong"}
        items = [{"role": "user", "content": "ring"}, message, called, result] if way == "history" else [result]
        more = {"previous_response_id": first.id} if way == "previous" else reference
        second = await home.ask(items, tools=[RING], **more)
        again = await home.ask(items, tools=[RING], **more)
        items = [item async for item in home.client.responses.input_items.list(second.id)]
        (session,) = await home.agent.sessions()
    answer = home.model.prompts[1].messages[-1]
    assert isinstance(answer, ToolMessage)
    assert [one.text for one in answer.results] == ["ding dong"]
    assert (second.output_text, again, first.id != second.id) == ("it rang", second, True)
    assert [(item.type, item.output) for item in items] == [("function_call_output", "ding dong")]  # type: ignore[union-attr]
    assert (len(home.model.prompts), session.has_work) == (2, False)


async def test_outputs_of_calls_that_do_not_wait_are_refused(tmp_path: Path) -> None:
    result = {"type": "function_call_output", "call_id": "call_x", "output": "ding"}
    async with responses_home(tmp_path, says("hello")) as home:
        first = await home.ask("hi")
        with pytest.raises(openai.BadRequestError, match="is waiting for an output"):
            await home.ask([result], previous_response_id=first.id)
        with pytest.raises(openai.NotFoundError):
            await home.ask([result], conversation="unheard of")
        with pytest.raises(openai.NotFoundError):
            await home.ask([result], conversation=first.id[5:15])
        with pytest.raises(openai.BadRequestError, match="tool call"):
            await home.ask([result])
        assert len(await home.agent.sessions()) == 1


@pytest.mark.promise("S5")
async def test_another_persons_response_does_not_exist(tmp_path: Path) -> None:
    async with responses_home(tmp_path, says("secret")) as home, client_of(home.url, "bob") as bob:
        made = await home.ask("hi")
        create: Any = bob.responses.create
        for attempt in (
            lambda: bob.responses.retrieve(made.id),
            lambda: bob.responses.cancel(made.id),
            lambda: bob.responses.delete(made.id),
            lambda: bob.responses.input_items.list(made.id),
            lambda: create(model="outrider", input="hi", previous_response_id=made.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await attempt()
        assert (await home.client.responses.retrieve(made.id)) == made


async def test_a_response_that_is_not_stored_cannot_be_retrieved(tmp_path: Path) -> None:
    async with responses_home(tmp_path, says("gone")) as home:
        made = await home.ask("hi", store=False)
        with pytest.raises(openai.NotFoundError):
            await home.client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError, match="store"):
            await home.ask("hi", store=False, background=True)
        (session,) = await home.agent.sessions()
        (items,) = [e.body for e in await home.agent.journal(session) if isinstance(e.body, Input)]
    assert (made.output_text, items.address.partition(":")[0]) == ("gone", "chat")


async def test_a_cancelled_response_stops_and_says_so(tmp_path: Path) -> None:
    held = stalls("working")
    async with responses_home(tmp_path, held, says("never")) as home:
        made = await home.ask("go", background=True)
        with anyio.fail_after(60):
            await held.reached.wait()
        stopped = await home.client.responses.cancel(made.id)
        again = await home.client.responses.cancel(made.id)
        events = await home.again(made.id)
    assert (stopped.status, stopped.id, again) == ("cancelled", made.id, stopped)
    assert (events[-1].type, events[-1].response.status) == ("response.incomplete", "cancelled")


async def test_cancelling_is_refused_when_it_would_stop_another_response(tmp_path: Path) -> None:
    held = stalls("working")
    async with responses_home(tmp_path, held, says("the first"), says("the second")) as home:
        first = await home.ask("go", background=True)
        with anyio.fail_after(60):
            await held.reached.wait()
        second = await home.ask("and then", background=True, previous_response_id=first.id)
        with pytest.raises(openai.ConflictError, match="stop all of it"):
            await home.client.responses.cancel(second.id)
        held.release()
        done = [await home.until(id, "completed", "failed") for id in (first.id, second.id)]
    assert [one.output_text for one in done] == ["the first", "the second"]


async def test_a_turn_that_fails_or_is_truncated_shows_in_the_response(tmp_path: Path) -> None:
    lines = fails(Refused("the provider knows no such model")), says("once upon a", cut="length")
    async with responses_home(tmp_path, *lines) as home:
        failed = await home.ask("hi", conversation="s")
        events = await home.again(failed.id)
        cut = await home.ask("a story", conversation="s")
    assert (failed.status, "knows no such model" in failed.error.message) == ("failed", True)
    assert (events[-1].type, events[-1].response) == ("response.failed", failed)
    assert (cut.status, cut.incomplete_details.reason, cut.output_text) == (
        "incomplete",
        "max_output_tokens",
        "once upon a",
    )


async def test_the_only_response_of_a_session_is_deleted_with_it(tmp_path: Path) -> None:
    async with responses_home(tmp_path, says("hello")) as home:
        past = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        made = await home.ask([*past, {"role": "user", "content": "c"}])
        await home.client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await home.client.responses.retrieve(made.id)
        assert await home.agent.sessions() == []


async def test_a_finished_response_is_the_same_after_a_restart(tmp_path: Path) -> None:
    headers = {"Idempotency-Key": "invoice-7"}
    async with responses_home(tmp_path, says("paid")) as home:
        made = await home.ask("pay", extra_headers=headers)
        streamed = await home.again(made.id)
    async with responses_home(tmp_path, says("never")) as home:
        assert await home.client.responses.retrieve(made.id) == made
        assert await home.ask("pay", extra_headers=headers) == made
        assert await home.again(made.id) == streamed
        assert home.model.prompts == []
