"""Chat completions as the official OpenAI client sees them."""

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk

from outrider.app.agent import Agent
from outrider.channels.http.routes_chat import ROUTES as CHAT
from outrider.channels.http.routes_models import ROUTES as MODELS
from outrider.core.errors import Refused
from outrider.core.events import Ended, Input, Result
from outrider.core.parts import Usage
from outrider.core.prompt import FromModel, FromPerson, FromTools, Prompt
from outrider.models.scripted import Says, ScriptedModel, call, fails, says, stalls
from tests.support.http import client as bare_client
from tests.support.http import key_of, serving
from tests.support.tasking import opened

pytestmark = pytest.mark.anyio

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
RING: Any = {
    "type": "function",
    "function": {
        "name": "ring",
        "description": "Ring a bell.",
        "parameters": {"type": "object", "properties": {"times": {"type": "integer"}}},
    },
}


class Talk:
    """A home behind HTTP and a client of it."""

    def __init__(self, agent: Agent, client: AsyncOpenAI, url: str, model: ScriptedModel) -> None:
        self.agent, self.client, self.url, self.model = agent, client, url, model

    async def ask(self, *messages: Any, **more: Any) -> Any:
        create: Any = self.client.chat.completions.create
        with anyio.fail_after(60):
            return await create(model=more.pop("model", "outrider"), messages=[_message(m) for m in messages], **more)

    async def chunks(self, *messages: Any, **more: Any) -> list[ChatCompletionChunk]:
        return [chunk async for chunk in await self.ask(*messages, stream=True, **more)]


def _message(message: Any) -> Any:
    return {"role": "user", "content": message} if isinstance(message, str) else message


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def client_of(url: str, person: str = "owner", **more: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key_of(person), timeout=30, **more)


@asynccontextmanager
async def talking(folder: Path, *lines: Any, **settings: str) -> AsyncGenerator[Talk]:
    model = ScriptedModel(*lines)
    async with (
        opened(folder, model, **settings) as agent,
        serving(agent, (*CHAT, *MODELS)) as url,
        client_of(url) as client,
    ):
        yield Talk(agent, client, url, model)


async def test_a_completion_has_the_text_the_usage_and_a_reason_to_end(tmp_path: Path) -> None:
    async with talking(tmp_path, says("hello there", usage=Usage(10, 3, cached=4, reasoning=1))) as talk:
        answer = await talk.ask("hi")
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "hello there", "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (10, 3, 13)
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert answer.usage.completion_tokens_details.reasoning_tokens == 1
    assert (answer.object, answer.model, answer.id[:9]) == ("chat.completion", "outrider", "chatcmpl-")


async def test_a_stream_begins_with_the_role_and_ends_with_the_reason_and_the_usage(tmp_path: Path) -> None:
    async with talking(tmp_path, says("one two three", usage=Usage(7, 3))) as talk:
        chunks = await talk.chunks("count", stream_options={"include_usage": True})
    first, *_, last, usage = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert text_of(chunks) == "one two three"
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 1
    assert (last.choices[0].finish_reason, last.choices[0].delta.content) == ("stop", None)
    assert usage.choices == []
    assert usage.usage
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens) == (7, 3)
    assert {chunk.id for chunk in chunks} == {first.id}


async def test_a_stream_on_the_wire_ends_with_done_and_has_no_usage_unasked(tmp_path: Path) -> None:
    body = {"model": "outrider", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with talking(tmp_path, says("hello")) as talk, bare_client(talk.url) as http:
        answer = await http.post("/v1/chat/completions", json=body)
    events = [line for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events[-1] == "data: [DONE]"
    assert "usage" not in answer.text


async def test_the_blocking_client_gets_the_same(tmp_path: Path) -> None:
    def ask(url: str) -> list[str]:
        with OpenAI(base_url=f"{url}/v1", api_key=key_of(), timeout=30) as client:
            whole = client.chat.completions.create(model="outrider", messages=[{"role": "user", "content": "hi"}])
            stream = client.chat.completions.create(
                model="outrider", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            return [whole.choices[0].message.content or "", text_of(list(stream))]

    async with talking(tmp_path, says("hello there")) as talk:
        assert await anyio.to_thread.run_sync(ask, talk.url) == ["hello there", "hello there"]


async def test_the_words_around_our_own_tools_are_one_answer_streamed_or_not(tmp_path: Path) -> None:
    lines = says("let me look", call("list", path=".")), says("it is empty")
    async with talking(tmp_path, *lines) as talk:
        whole = (await talk.ask("what is here?")).choices[0].message
        chunks = await talk.chunks("what is here?")
    assert (whole.content, whole.tool_calls) == ("let me look\n\nit is empty", None)
    assert text_of(chunks) == whole.content
    assert not any(choice.delta.tool_calls for chunk in chunks for choice in chunk.choices)


async def test_the_messages_are_the_history(tmp_path: Path) -> None:
    async with talking(tmp_path, says("unused"), says("unused"), says("you are Ann")) as talk:
        answer = await talk.ask(
            {"role": "system", "content": "speak plainly"},
            "I am Ann",
            {"role": "assistant", "content": "hello Ann"},
            {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "text", "text": "so?"}]},
            {"role": "assistant", "content": "so"},
            {"role": "developer", "content": "be brief"},
            "who am I?",
        )
    (prompt,) = talk.model.prompts
    assert answer.choices[0].message.content == "you are Ann"
    assert prompt.system.endswith("speak plainly\n\nbe brief")
    assert list(prompt.messages) == [
        FromPerson("I am Ann"),
        FromModel("hello Ann"),
        FromPerson("and\nso?"),
        FromModel("so"),
        FromPerson("who am I?"),
    ]


@pytest.mark.parametrize("header", ["X-Session-Id", "X-Outrider-Session-Id", "X-Hermes-Session-Id"])
async def test_a_session_named_by_a_header_goes_on_with_only_the_new_words(tmp_path: Path, header: str) -> None:
    async with talking(tmp_path, says("hello Ann"), says("you are Ann")) as talk:
        raw = talk.client.chat.completions.with_raw_response
        message: Any = [{"role": "user", "content": "I am Ann"}]
        first = await raw.create(model="outrider", messages=message, extra_headers={header: "dead"})
        second = await talk.ask(
            "I am Ann", {"role": "assistant", "content": "?"}, "who?", extra_headers={header: "dead"}
        )
        (session,) = await talk.agent.sessions()
    assert first.headers["x-session-id"] == "dead" == session.name
    assert second.choices[0].message.content == "you are Ann"
    assert list(talk.model.prompts[1].messages) == [FromPerson("I am Ann"), FromModel("hello Ann"), FromPerson("who?")]


async def test_a_session_the_server_named_can_be_gone_on_with(tmp_path: Path) -> None:
    async with talking(tmp_path, says("one"), says("two")) as talk:
        message: Any = [{"role": "user", "content": "go"}]
        raw = talk.client.chat.completions.with_raw_response
        first = await raw.create(model="outrider", messages=message)
        again = await talk.ask("more", extra_headers={"X-Session-Id": first.headers["x-session-id"]})
    assert again.choices[0].message.content == "two"


async def test_sessions_of_one_person_are_not_another_persons(tmp_path: Path) -> None:
    async with talking(tmp_path, says("secret"), says("never")) as talk, client_of(talk.url, "bob") as bob:
        await talk.ask("hi", extra_headers={"X-Session-Id": "s"})
        answer = await bob.chat.completions.create(
            model="outrider", messages=[{"role": "user", "content": "hi"}], extra_headers={"X-Session-Id": "s"}
        )
    assert answer.choices[0].message.content == "secret"
    assert [len(prompt.messages) for prompt in talk.model.prompts] == [1, 1]


async def test_a_picture_is_seen_by_the_model(tmp_path: Path) -> None:
    async with talking(tmp_path, says("a pixel")) as talk:
        url = f"data:image/png;base64,{PIXEL}"
        parts = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url}}]
        await talk.ask({"role": "user", "content": parts})
    (message,) = talk.model.prompts[0].messages
    assert isinstance(message, FromPerson)
    assert (message.text, [image.media for image in message.images]) == ("what?", ["image/png"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}], "not fetched"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], "not a picture"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,%%"}}], "not valid base64"),
        ([{"type": "input_audio"}], "input_audio"),
        ("  ", "empty"),
    ],
)
async def test_what_cannot_be_taken_is_refused_in_words_and_begins_nothing(
    tmp_path: Path, content: Any, words: str
) -> None:
    async with talking(tmp_path, says("never")) as talk:
        with pytest.raises(openai.BadRequestError, match=words):
            await talk.ask({"role": "user", "content": content})
        assert talk.model.prompts == []
        assert await talk.agent.sessions() == []


async def test_a_clients_tool_is_called_by_the_client_and_the_turn_goes_on(tmp_path: Path) -> None:
    lines = says("ringing", call("ring", times=2), call("list", path=".")), says("it rang")
    async with talking(tmp_path, *lines) as talk:
        first = (await talk.ask("ring", tools=[RING])).choices[0]
        assert (first.message.content, first.finish_reason) == ("ringing", "tool_calls")
        (wanted,) = first.message.tool_calls
        assert (wanted.type, wanted.function.name, wanted.function.arguments) == ("function", "ring", '{"times":2}')
        result = {"role": "tool", "tool_call_id": wanted.id, "content": "ding dong"}
        second = await talk.ask("ring", first.message, result, tools=[RING])
        again = await talk.ask("ring", first.message, result, tools=[RING])
        (session,) = await talk.agent.sessions()
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("it rang", "stop")
    assert again.choices[0].message.content == "it rang"
    results = talk.model.prompts[1].messages[-1]
    assert isinstance(results, FromTools)
    assert results.results[0].text == "ding dong"
    assert (len(talk.model.prompts), session.has_work) == (2, False)


async def test_a_clients_tool_in_a_stream(tmp_path: Path) -> None:
    async with talking(tmp_path, says("", call("ring", times=1), call("ring", times=2)), says("done")) as talk:
        chunks = await talk.chunks("ring", tools=[RING])
        deltas = [one for chunk in chunks for choice in chunk.choices for one in choice.delta.tool_calls or ()]
        assert [(one.index, one.function and one.function.arguments) for one in deltas] == [
            (0, '{"times":1}'),
            (1, '{"times":2}'),
        ]
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        calls = [{"id": one.id, "type": "function", "function": {"name": "ring", "arguments": "{}"}} for one in deltas]
        results = [{"role": "tool", "tool_call_id": one.id, "content": f"ding {one.index}"} for one in deltas]
        rest = await talk.chunks("ring", {"role": "assistant", "tool_calls": calls}, *results, tools=[RING])
    assert text_of(rest) == "done"
    told = talk.model.prompts[1].messages[-1]
    assert isinstance(told, FromTools)
    assert [one.text for one in told.results] == ["ding 0", "ding 1"]


@pytest.mark.parametrize("headers", [{}, {"X-Session-Id": "s"}])
async def test_a_client_that_goes_on_without_results_is_not_waited_for(tmp_path: Path, headers: dict[str, str]) -> None:
    async with talking(tmp_path, says("", call("ring")), says("never mind then")) as talk:
        first = (await talk.ask("ring", tools=[RING], extra_headers=headers)).choices[0]
        second = await talk.ask("ring", first.message, "stop that", tools=[RING], extra_headers=headers)
        (session,) = await talk.agent.sessions()
    assert second.choices[0].message.content == "never mind then"
    *_, results, words = talk.model.prompts[1].messages
    assert isinstance(results, FromTools)
    assert [(one.text, one.failed) for one in results.results] == [("not run: the client went on", True)]
    assert words == FromPerson("stop that")
    assert (len(talk.model.prompts), session.has_work) == (2, False)


async def test_a_conversation_with_calls_made_elsewhere_goes_on_here(tmp_path: Path) -> None:
    calls = [{"id": "call_abc", "type": "function", "function": {"name": "ring", "arguments": '{"times": 3}'}}]
    async with talking(tmp_path, says("unused"), says("it rang thrice", call("ring")), says("again")) as talk:
        answer = await talk.ask(
            "ring",
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_abc", "content": "ding"},
            tools=[RING],
        )
        (session,) = await talk.agent.sessions()
        kinds = [type(entry.body).__name__ for entry in await talk.agent.journal(session)]
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("it rang thrice", "tool_calls")
    assert kinds == ["Input", "Started", "Reply", "Result", "Resumed", "Reply"]


async def test_the_same_key_gives_the_same_completion_also_after_a_restart(tmp_path: Path) -> None:
    headers = {"Idempotency-Key": "invoice-7"}
    async with talking(tmp_path, says("", call("write", path="n", content="x")), says("paid", call("ring"))) as talk:
        first = await talk.ask("pay", tools=[RING], extra_headers=headers)
        again = await talk.ask("pay", tools=[RING], extra_headers=headers)
        with pytest.raises(openai.BadRequestError, match="other words"):
            await talk.ask("pay twice", tools=[RING], extra_headers=headers)
        assert len(talk.model.prompts) == 2
    async with talking(tmp_path, says("never"), says("never")) as talk:
        later = await talk.ask("pay", tools=[RING], extra_headers=headers)
        streamed = await talk.chunks("pay", tools=[RING], extra_headers=headers)
        assert talk.model.prompts == []
    assert first == again == later
    assert (text_of(streamed), streamed[0].id) == ("paid", first.id)


async def test_a_failed_turn_is_an_error_that_is_not_tried_again(tmp_path: Path) -> None:
    async with talking(tmp_path, fails(Refused("the provider knows no such model"), times=9), says("never")) as talk:
        with pytest.raises(openai.APIStatusError, match="knows no such model") as caught:
            await talk.ask("hi")
        assert caught.value.status_code == 502
        with pytest.raises(openai.APIError, match="knows no such model"):
            await talk.chunks("hi")
        assert len(talk.model.prompts) == 2


async def test_a_reply_cut_by_its_length_says_so(tmp_path: Path) -> None:
    async with talking(tmp_path, says("once upon a", cut="length")) as talk:
        answer = await talk.ask("a story")
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("once upon a", "length")


async def test_closing_the_connection_does_not_stop_the_turn(tmp_path: Path) -> None:
    held = stalls("thinking")
    async with talking(tmp_path, held, says("thinking it through")) as talk:
        with anyio.fail_after(60):
            stream = await talk.ask("go", stream=True, extra_headers={"X-Session-Id": "s"})
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
            await stream.close()
            held.release()
            session = await talk.agent.find("s")
            async for event in talk.agent.follow(session):
                if isinstance(getattr(event, "body", None), Ended):
                    break
    assert len(talk.model.prompts) == 1


async def test_a_model_is_chosen_by_a_name_that_says_whose_it_is(tmp_path: Path) -> None:
    async with talking(tmp_path, says("from the script"), says("unused")) as talk:
        ours = await talk.ask("hi", model="gpt-4o")
        with pytest.raises(openai.NotFoundError, match="needs a key"):
            await talk.ask("hi", model="anthropic:claude-sonnet-5")
        listed = [model.id async for model in talk.client.models.list()]
        found = await talk.client.models.retrieve("outrider")
        with pytest.raises(openai.NotFoundError):
            await talk.client.models.retrieve("nonsense")
    assert (ours.model, ours.choices[0].message.content) == ("outrider", "from the script")
    assert listed == ["outrider", "practice"]
    assert (found.id, found.object, found.owned_by) == ("outrider", "model", "outrider")


@pytest.mark.behaviour("B3")
async def test_a_background_command_is_not_promised_to_a_chat_completion(tmp_path: Path) -> None:
    lines = says("", call("shell", command="true", background=True)), says("started")
    async with talking(tmp_path, *lines) as talk:
        answer = await talk.ask("build it", extra_headers={"X-Session-Id": "s"})
        session = await talk.agent.find("s")
        journal = await talk.agent.journal(session)
        (task,) = await talk.agent.tasks(session)
    (result,) = [entry.body for entry in journal if isinstance(entry.body, Result)]
    (heard,) = [entry.body for entry in journal if isinstance(entry.body, Input)]
    assert answer.choices[0].message.content == "started"
    assert heard.address == f"chat:{answer.id}"
    assert '"notify":false' in result.text
    assert "Poll it" in result.text
    assert task.wish.notify == "never"


@pytest.mark.behaviour("B6")
async def test_work_delegated_in_the_background_is_done_within_the_completion(tmp_path: Path) -> None:
    def answer(prompt: Prompt) -> Says:
        words = [m.text for m in prompt.messages if isinstance(m, FromPerson)]
        if words == ["look it up"]:
            return says("it is blue")
        results = prompt.messages[-1]
        if not isinstance(results, FromTools):
            return says("", call("delegate", work="look it up", background=True))
        return says("done at once" if "not in the background" in results.results[0].text else "promised")

    async with talking(tmp_path, answer, answer) as talk:
        told = await talk.ask("what colour?")
    assert told.choices[0].message.content == "done at once"
