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
from outrider.channels.http.openai.responses import ROUTES
from outrider.core.errors import Refused
from outrider.core.events import Input
from outrider.core.prompt import AssistantMessage, ToolMessage, UserMessage
from outrider.core.types import Usage
from outrider.testing.scripted_model import ScriptedModel, call, fails, says, stalls
from tests.support.http import serving
from tests.support.talking import client_of
from tests.support.tasking import open_scripted

pytestmark = pytest.mark.anyio

RING: Any = {
    "type": "function",
    "name": "ring",
    "description": "Ring a bell.",
    "parameters": {"type": "object", "properties": {"times": {"type": "integer"}}},
    "strict": False,
}


class Place:
    """A home behind HTTP and a client of it."""

    def __init__(self, agent: Agent, client: AsyncOpenAI, url: str, model: ScriptedModel) -> None:
        self.agent, self.client, self.url, self.model = agent, client, url, model

    async def ask(self, given: Any, **more: Any) -> Any:
        create: Any = self.client.responses.create
        with anyio.fail_after(60):
            return await create(model="outrider", input=given, **more)

    async def events(self, given: Any, **more: Any) -> list[Any]:
        return [event async for event in await self.ask(given, stream=True, **more)]

    async def again(self, id: str, after: int | None = None) -> list[Any]:
        retrieve: Any = self.client.responses.retrieve
        more = {} if after is None else {"starting_after": after}
        with anyio.fail_after(60):
            return [event async for event in await retrieve(id, stream=True, **more)]

    async def until(self, id: str, *statuses: str) -> Any:
        with anyio.fail_after(60):
            while (found := await self.client.responses.retrieve(id)).status not in statuses:
                await anyio.sleep(0.01)
        return found


@asynccontextmanager
async def place(folder: Path, *lines: Any) -> AsyncGenerator[Place]:
    model = ScriptedModel(*lines)
    async with (
        open_scripted(folder, model) as agent,
        serving(agent, ROUTES) as url,
        client_of(url, max_retries=0) as client,
    ):
        yield Place(agent, client, url, model)


def text_of(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


async def test_a_response_has_the_text_the_usage_and_can_be_had_again(tmp_path: Path) -> None:
    line = says("hello there", usage=Usage(10, 3, cached=4, reasoning=1))
    async with place(tmp_path, line) as there:
        made = await there.ask("hi", instructions="speak plainly")
        found = await there.client.responses.retrieve(made.id)
        items = [item async for item in there.client.responses.input_items.list(made.id)]
    assert (made.status, made.output_text, made.model, made.object) == (
        "completed",
        "hello there",
        "outrider",
        "response",
    )
    assert (made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens) == (10, 3, 13)
    assert made.usage.input_tokens_details.cached_tokens == 4
    assert made.instructions == "speak plainly"
    assert there.model.prompts[0].system.endswith("speak plainly")
    assert found == made
    assert [(item.type, item.content[0].text) for item in items] == [("message", "hi")]  # type: ignore[union-attr]


async def test_a_stream_tells_everything_in_order_under_growing_numbers(tmp_path: Path) -> None:
    async with place(tmp_path, says("one two three")) as there:
        events = await there.events("count")
        found = await there.client.responses.retrieve(events[0].response.id)
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
    assert events[-1].response == found


async def test_a_stream_taken_up_after_any_event_gives_exactly_the_rest(tmp_path: Path) -> None:
    lines = says("let me look", call("list", path=".")), says("now I ring", call("ring", times=1))
    async with place(tmp_path, *lines) as there:
        events = await there.events("look and ring", tools=[RING])
        id = events[0].response.id
        for at, last in enumerate(events):
            rest = await there.again(id, last.sequence_number)
            assert text_of(rest) == text_of(events[at + 1 :])
            others = [event for event in events[at + 1 :] if event.type != "response.output_text.delta"]
            assert [event for event in rest if event.type != "response.output_text.delta"] == others
        whole = await there.again(id)
    assert text_of(whole) == "let me look\n\nnow I ring"
    assert kinds_of(whole)[-5:] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_a_number_beyond_all_that_was_told_is_refused(tmp_path: Path) -> None:
    async with place(tmp_path, says("hello")) as there:
        made = await there.ask("hi")
        with pytest.raises(openai.BadRequestError) as refused:
            await there.again(made.id, 999_999_999)
    assert refused.value.code == "invalid_cursor"


def kinds_of(events: list[Any]) -> list[str]:
    return [event.type for event in events]


async def test_a_response_says_whether_it_was_asked_for_in_the_background_and_to_be_stored(tmp_path: Path) -> None:
    async with place(tmp_path, says("one"), says("two"), says("three")) as there:
        asked = await there.ask("hi", background=True)
        made = [await there.until(asked.id, "completed"), await there.ask("hi"), await there.ask("hi", store=False)]
    assert [(one.background, one.model_dump()["store"]) for one in (asked, *made)] == [
        (True, True),
        (True, True),
        (False, True),
        (False, False),
    ]


async def test_a_response_in_the_background_is_polled_for(tmp_path: Path) -> None:
    held = stalls("working")
    async with place(tmp_path, held, says("never")) as there:
        made = await there.ask("go", background=True)
        assert made.status in ("queued", "in_progress")
        with anyio.fail_after(30):
            await held.reached.wait()
        assert (await there.client.responses.retrieve(made.id)).status == "in_progress"
        held.release()
        found = await there.until(made.id, "completed", "failed")
    assert (found.status, found.id) == ("completed", made.id)


async def test_a_client_that_lost_its_connection_comes_back_for_the_rest(tmp_path: Path) -> None:
    held = stalls("thinking it")
    async with place(tmp_path, held, says("thinking it through")) as there:
        stream, heard = await there.ask("go", stream=True), list[Any]()
        async for event in stream:
            heard.append(event)
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        held.release()
        rest = await there.again(heard[0].response.id, heard[-1].sequence_number)
        done = await there.client.responses.retrieve(heard[0].response.id)
    assert rest[-1].type == "response.completed"
    assert text_of(heard + rest) == done.output_text == "thinking it through"
    assert len(there.model.prompts) == 1


async def test_a_stream_cut_by_a_restart_says_so_and_is_taken_up_afterwards(tmp_path: Path) -> None:
    held, heard = stalls("thinking it"), list[Any]()
    async with place(tmp_path, held, says("never")) as there:
        with anyio.fail_after(60):
            async for event in await there.ask("go", stream=True):
                heard.append(event)
                if event.type == "response.output_text.delta":
                    await there.agent.drain("a restart is under way")
    *heard, error = heard
    assert (error.type, error.message, error.sequence_number) == (
        "error",
        "a restart is under way",
        heard[-1].sequence_number,
    )
    async with place(tmp_path, says("thinking it through")) as there:
        await there.agent.resume_all()
        rest = await there.again(heard[0].response.id, error.sequence_number)
    assert text_of(heard + rest) == "thinking it through"
    assert rest[-1].type == "response.completed"


async def test_words_that_are_taken_back_in_a_stream_are_put_right_by_what_closes_it(tmp_path: Path) -> None:
    held = stalls("a long wrong beginning")
    async with place(tmp_path, held, says("short")) as there:
        heard = list[Any]()
        async for event in await there.ask("go", stream=True):
            heard.append(event)
            if event.type == "response.output_text.delta":
                held.release()
    numbers = [event.sequence_number for event in heard]
    assert numbers == sorted(set(numbers))
    assert [event.text for event in heard if event.type == "response.output_text.done"] == ["short"]
    assert heard[-1].response.output_text == "short"


async def test_a_response_goes_on_from_the_last_one_and_from_no_other(tmp_path: Path) -> None:
    async with place(tmp_path, says("hello Ann"), says("you are Ann")) as there:
        first = await there.ask("I am Ann")
        headers = {"Idempotency-Key": "k"}
        second = await there.ask("who am I?", previous_response_id=first.id, extra_headers=headers)
        again = await there.ask("who am I?", previous_response_id=first.id, extra_headers=headers)
        with pytest.raises(openai.BadRequestError, match=second.id):
            await there.ask("and I?", previous_response_id=first.id)
        assert (await there.client.responses.retrieve(first.id)) == first
        with pytest.raises(openai.ConflictError):
            await there.client.responses.delete(first.id)
    assert (second.output_text, again) == ("you are Ann", second)
    said = [UserMessage("I am Ann"), AssistantMessage("hello Ann"), UserMessage("who am I?")]
    assert [list(prompt.messages) for prompt in there.model.prompts] == [said[:1], said]


async def test_of_two_that_go_on_from_the_same_response_at_once_one_is_told_to_take_the_others(tmp_path: Path) -> None:
    async with place(tmp_path, *(says(f"answer {number}") for number in range(9))) as there:
        first = await there.ask("one")
        made: list[Any] = []
        refused: list[openai.BadRequestError] = []

        async def go_on(number: int) -> None:
            try:
                made.append(await there.ask(f"two, {number}", previous_response_id=first.id))
            except openai.BadRequestError as error:
                refused.append(error)

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(go_on, number)
        (session,) = await there.agent.sessions()
        said = [entry.body for entry in await there.agent.journal(session) if isinstance(entry.body, Input)]
    assert ([response.output_text for response in made], len(said)) == (["answer 1"], 2)
    assert [error.code for error in refused] == ["not_last"] * 7
    assert all(made[0].id in error.message for error in refused)


async def test_a_conversation_is_a_session_by_its_name(tmp_path: Path) -> None:
    async with place(tmp_path, says("one"), says("two")) as there:
        await there.ask("first", conversation="diary")
        second = await there.ask([{"role": "user", "content": "second"}], conversation={"id": "diary"})
        (session,) = await there.agent.sessions()
    assert (second.output_text, session.name, len(there.model.prompts[1].messages)) == ("two", "diary", 3)


@pytest.mark.parametrize("way", ["previous", "conversation", "history"])
async def test_a_clients_tool_is_run_by_the_client_and_the_turn_goes_on(tmp_path: Path, way: str) -> None:
    named = {"conversation": "s"} if way == "conversation" else {}
    async with place(tmp_path, says("ringing", call("ring", times=2)), says("it rang")) as there:
        first = await there.ask("ring", tools=[RING], **named)
        message, wanted = first.output
        assert (first.status, message.content[0].text) == ("completed", "ringing")
        assert (wanted.type, wanted.name, wanted.arguments) == ("function_call", "ring", '{"times":2}')
        result = {"type": "function_call_output", "call_id": wanted.call_id, "output": "ding dong"}
        given = [{"role": "user", "content": "ring"}, message, wanted, result] if way == "history" else [result]
        more = {"previous_response_id": first.id} if way == "previous" else named
        second = await there.ask(given, tools=[RING], **more)
        again = await there.ask(given, tools=[RING], **more)
        items = [item async for item in there.client.responses.input_items.list(second.id)]
        (session,) = await there.agent.sessions()
    told = there.model.prompts[1].messages[-1]
    assert isinstance(told, ToolMessage)
    assert [one.text for one in told.results] == ["ding dong"]
    assert (second.output_text, again, first.id != second.id) == ("it rang", second, True)
    assert [(item.type, item.output) for item in items] == [("function_call_output", "ding dong")]  # type: ignore[union-attr]
    assert (len(there.model.prompts), session.has_work) == (2, False)


async def test_results_nobody_waits_for_are_refused(tmp_path: Path) -> None:
    result = {"type": "function_call_output", "call_id": "call_x", "output": "ding"}
    async with place(tmp_path, says("hello")) as there:
        first = await there.ask("hi")
        with pytest.raises(openai.BadRequestError, match="waits for a result"):
            await there.ask([result], previous_response_id=first.id)
        with pytest.raises(openai.NotFoundError):
            await there.ask([result], conversation="unheard of")
        with pytest.raises(openai.NotFoundError):
            await there.ask([result], conversation=first.id[5:15])
        with pytest.raises(openai.BadRequestError, match="tool call"):
            await there.ask([result])
        assert len(await there.agent.sessions()) == 1


@pytest.mark.promise("S5")
async def test_another_persons_response_is_as_good_as_none(tmp_path: Path) -> None:
    async with place(tmp_path, says("secret")) as there, client_of(there.url, "bob") as bob:
        made = await there.ask("hi")
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
        assert (await there.client.responses.retrieve(made.id)) == made


async def test_a_response_that_is_not_stored_cannot_be_had_again(tmp_path: Path) -> None:
    async with place(tmp_path, says("gone")) as there:
        made = await there.ask("hi", store=False)
        with pytest.raises(openai.NotFoundError):
            await there.client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError, match="store"):
            await there.ask("hi", store=False, background=True)
        (session,) = await there.agent.sessions()
        (given,) = [e.body for e in await there.agent.journal(session) if isinstance(e.body, Input)]
    assert (made.output_text, given.address.partition(":")[0]) == ("gone", "chat")


async def test_a_cancelled_response_stops_and_says_so(tmp_path: Path) -> None:
    held = stalls("working")
    async with place(tmp_path, held, says("never")) as there:
        made = await there.ask("go", background=True)
        with anyio.fail_after(30):
            await held.reached.wait()
        stopped = await there.client.responses.cancel(made.id)
        again = await there.client.responses.cancel(made.id)
        events = await there.again(made.id)
    assert (stopped.status, stopped.id, again) == ("cancelled", made.id, stopped)
    assert (events[-1].type, events[-1].response.status) == ("response.incomplete", "cancelled")


async def test_a_response_is_not_cancelled_at_the_cost_of_another(tmp_path: Path) -> None:
    held = stalls("working")
    async with place(tmp_path, held, says("the first"), says("the second")) as there:
        first = await there.ask("go", background=True)
        with anyio.fail_after(30):
            await held.reached.wait()
        second = await there.ask("and then", background=True, previous_response_id=first.id)
        with pytest.raises(openai.ConflictError, match="stop all of it"):
            await there.client.responses.cancel(second.id)
        held.release()
        done = [await there.until(id, "completed", "failed") for id in (first.id, second.id)]
    assert [one.output_text for one in done] == ["the first", "the second"]


async def test_a_turn_that_fails_or_is_cut_is_told_in_the_response(tmp_path: Path) -> None:
    lines = fails(Refused("the provider knows no such model")), says("once upon a", cut="length")
    async with place(tmp_path, *lines) as there:
        failed = await there.ask("hi", conversation="s")
        events = await there.again(failed.id)
        cut = await there.ask("a story", conversation="s")
    assert (failed.status, "knows no such model" in failed.error.message) == ("failed", True)
    assert (events[-1].type, events[-1].response) == ("response.failed", failed)
    assert (cut.status, cut.incomplete_details.reason, cut.output_text) == (
        "incomplete",
        "max_output_tokens",
        "once upon a",
    )


async def test_a_lone_response_is_deleted_with_its_session(tmp_path: Path) -> None:
    async with place(tmp_path, says("hello")) as there:
        past = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        made = await there.ask([*past, {"role": "user", "content": "c"}])
        await there.client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await there.client.responses.retrieve(made.id)
        assert await there.agent.sessions() == []


async def test_a_finished_response_is_the_same_after_a_restart(tmp_path: Path) -> None:
    headers = {"Idempotency-Key": "invoice-7"}
    async with place(tmp_path, says("paid")) as there:
        made = await there.ask("pay", extra_headers=headers)
        streamed = await there.again(made.id)
    async with place(tmp_path, says("never")) as there:
        assert await there.client.responses.retrieve(made.id) == made
        assert await there.ask("pay", extra_headers=headers) == made
        assert await there.again(made.id) == streamed
        assert there.model.prompts == []
