"""Chat completions as the official OpenAI client sees them."""

import base64
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import openai
import pytest
from openai import OpenAI

from outrider.core.errors import Refused
from outrider.core.events import Ended, Entry, Input
from outrider.core.prompt import AssistantMessage, UserMessage
from outrider.core.types import Usage
from outrider.testing.scripted_model import call, fails, says, stalls
from tests.support.http import client as bare_client
from tests.support.http import key_of
from tests.support.openai_home import RING, client_of, openai_home, text_of

pytestmark = pytest.mark.anyio

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()


async def test_a_completion_has_the_text_the_usage_and_a_reason_to_end(tmp_path: Path) -> None:
    async with openai_home(tmp_path, says("hello there", usage=Usage(10, 3, cached=4, reasoning=1))) as home:
        answer = await home.ask("hi")
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "hello there", "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (10, 3, 13)
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert answer.usage.completion_tokens_details.reasoning_tokens == 1
    assert (answer.object, answer.model, answer.id[:9]) == ("chat.completion", "outrider", "chatcmpl-")


async def test_ignored_parameters_are_named_in_a_header(tmp_path: Path) -> None:
    async with openai_home(tmp_path, says("hello")) as home, bare_client(home.url) as client:
        order = {"model": "outrider", "messages": [{"role": "user", "content": "hi"}]}
        asked = {"temperature": 0.2, "max_completion_tokens": 5, "stop": ["x"], "top_p": None}
        answers = [
            await client.post("/v1/chat/completions", json={**order, **more})
            for more in (asked, {**asked, "stream": True}, {})
        ]
    assert [answer.headers.get("x-outrider-ignored") for answer in answers] == [
        "max_completion_tokens, temperature, stop",
        "max_completion_tokens, temperature, stop",
        None,
    ]


async def test_a_stream_begins_with_the_role_and_ends_with_the_reason_and_the_usage(tmp_path: Path) -> None:
    async with openai_home(tmp_path, says("one two three", usage=Usage(7, 3))) as home:
        chunks = await home.chunks("count", stream_options={"include_usage": True})
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
    async with openai_home(tmp_path, says("hello")) as home, bare_client(home.url) as http:
        answer = await http.post("/v1/chat/completions", json=body)
    events = [line for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events[-1] == "data: [DONE]"
    assert "usage" not in answer.text


async def test_the_blocking_client_gets_the_same(tmp_path: Path) -> None:
    def ask(url: str) -> list[str]:
        with OpenAI(base_url=f"{url}/v1", api_key=key_of(), timeout=60) as client:
            whole = client.chat.completions.create(model="outrider", messages=[{"role": "user", "content": "hi"}])
            stream = client.chat.completions.create(
                model="outrider", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            return [whole.choices[0].message.content or "", text_of(list(stream))]

    async with openai_home(tmp_path, says("hello there")) as home:
        assert await anyio.to_thread.run_sync(ask, home.url) == ["hello there", "hello there"]


async def test_the_text_around_our_own_tools_is_one_message_streamed_or_not(tmp_path: Path) -> None:
    lines = says("let me look", call("list", path=".")), says("it is empty")
    async with openai_home(tmp_path, *lines) as home:
        whole = (await home.ask("what is here?")).choices[0].message
        chunks = await home.chunks("what is here?")
    assert (whole.content, whole.tool_calls) == ("let me look\n\nit is empty", None)
    assert text_of(chunks) == whole.content
    assert not any(choice.delta.tool_calls for chunk in chunks for choice in chunk.choices)


async def test_the_messages_are_the_history(tmp_path: Path) -> None:
    async with openai_home(tmp_path, says("unused"), says("unused"), says("you are Ann")) as home:
        answer = await home.ask(
            {"role": "system", "content": "speak plainly"},
            "I am Ann",
            {"role": "assistant", "content": "hello Ann"},
            {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "text", "text": "so?"}]},
            {"role": "assistant", "content": "so"},
            {"role": "developer", "content": "be brief"},
            "who am I?",
        )
    (prompt,) = home.model.prompts
    assert answer.choices[0].message.content == "you are Ann"
    assert prompt.system.endswith("speak plainly\n\nbe brief")
    assert list(prompt.messages) == [
        UserMessage("I am Ann"),
        AssistantMessage("hello Ann"),
        UserMessage("and\nso?"),
        AssistantMessage("so"),
        UserMessage("who am I?"),
    ]


@pytest.mark.parametrize("header", ["X-Session-Id", "X-Outrider-Session-Id", "X-Hermes-Session-Id"])
async def test_a_session_named_by_a_header_continues_with_only_the_new_messages(tmp_path: Path, header: str) -> None:
    async with openai_home(tmp_path, says("hello Ann"), says("you are Ann")) as home:
        raw = home.client.chat.completions.with_raw_response
        message: Any = [{"role": "user", "content": "I am Ann"}]
        first = await raw.create(model="outrider", messages=message, extra_headers={header: "dead"})
        second = await home.ask(
            "I am Ann", {"role": "assistant", "content": "?"}, "who?", extra_headers={header: "dead"}
        )
        (session,) = await home.agent.sessions()
    assert first.headers["x-session-id"] == "dead" == session.name
    assert second.choices[0].message.content == "you are Ann"
    assert list(home.model.prompts[1].messages) == [
        UserMessage("I am Ann"),
        AssistantMessage("hello Ann"),
        UserMessage("who?"),
    ]


async def test_a_session_that_the_server_named_can_be_continued(tmp_path: Path) -> None:
    async with openai_home(tmp_path, says("one"), says("two")) as home:
        message: Any = [{"role": "user", "content": "go"}]
        raw = home.client.chat.completions.with_raw_response
        first = await raw.create(model="outrider", messages=message)
        again = await home.ask("more", extra_headers={"X-Session-Id": first.headers["x-session-id"]})
    assert again.choices[0].message.content == "two"


async def test_sessions_of_one_person_are_not_another_persons(tmp_path: Path) -> None:
    async with openai_home(tmp_path, says("secret"), says("never")) as home, client_of(home.url, "bob") as bob:
        await home.ask("hi", extra_headers={"X-Session-Id": "s"})
        answer = await bob.chat.completions.create(
            model="outrider", messages=[{"role": "user", "content": "hi"}], extra_headers={"X-Session-Id": "s"}
        )
    assert answer.choices[0].message.content == "secret"
    assert [len(prompt.messages) for prompt in home.model.prompts] == [1, 1]


async def test_an_image_reaches_the_model(tmp_path: Path) -> None:
    async with openai_home(tmp_path, says("a pixel")) as home:
        url = f"data:image/png;base64,{PIXEL}"
        parts = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url}}]
        await home.ask({"role": "user", "content": parts})
    (message,) = home.model.prompts[0].messages
    assert isinstance(message, UserMessage)
    assert (message.text, [image.media for image in message.images]) == ("what?", ["image/png"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}], "not fetched"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], "not a supported image"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,%%"}}], "not valid base64"),
        ([{"type": "input_audio"}], "input_audio"),
        ("  ", "empty"),
    ],
)
async def test_an_unsupported_request_is_refused_and_starts_nothing(tmp_path: Path, content: Any, words: str) -> None:
    async with openai_home(tmp_path, says("never")) as home:
        with pytest.raises(openai.BadRequestError, match=words):
            await home.ask({"role": "user", "content": content})
        assert home.model.prompts == []
        assert await home.agent.sessions() == []


async def test_the_same_key_gives_the_same_completion_also_after_a_restart(tmp_path: Path) -> None:
    headers = {"Idempotency-Key": "invoice-7"}
    async with openai_home(
        tmp_path, says("", call("write", path="n", content="x")), says("paid", call("ring"))
    ) as home:
        first = await home.ask("pay", tools=[RING], extra_headers=headers)
        again = await home.ask("pay", tools=[RING], extra_headers=headers)
        with pytest.raises(openai.BadRequestError, match="different message"):
            await home.ask("pay twice", tools=[RING], extra_headers=headers)
        assert len(home.model.prompts) == 2
    async with openai_home(tmp_path, says("never"), says("never")) as home:
        later = await home.ask("pay", tools=[RING], extra_headers=headers)
        streamed = await home.chunks("pay", tools=[RING], extra_headers=headers)
        assert home.model.prompts == []
    assert first == again == later
    assert (text_of(streamed), streamed[0].id) == ("paid", first.id)


async def test_a_failed_turn_is_an_error_that_is_not_retried(tmp_path: Path) -> None:
    async with openai_home(
        tmp_path, fails(Refused("the provider knows no such model"), times=9), says("never")
    ) as home:
        with pytest.raises(openai.APIStatusError, match="knows no such model") as caught:
            await home.ask("hi")
        assert caught.value.status_code == 424
        with pytest.raises(openai.APIError, match="knows no such model"):
            await home.chunks("hi")
        assert len(home.model.prompts) == 2


async def test_a_reply_cut_by_its_length_says_so(tmp_path: Path) -> None:
    async with openai_home(tmp_path, says("once upon a", cut="length")) as home:
        answer = await home.ask("a story")
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("once upon a", "length")


async def test_closing_the_connection_does_not_stop_the_turn(tmp_path: Path) -> None:
    held = stalls("thinking")
    async with openai_home(tmp_path, held, says("thinking it through")) as home:
        with anyio.fail_after(60):
            stream = await home.ask("go", stream=True, extra_headers={"X-Session-Id": "s"})
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
            await stream.close()
            held.release()
            session = await home.agent.find("s")
            async for event in home.agent.follow(session):
                if isinstance(getattr(event, "body", None), Ended):
                    break
    assert len(home.model.prompts) == 1


async def test_two_requests_in_one_session_each_get_their_own_completion(tmp_path: Path) -> None:
    held, answers = stalls(), dict[str, str]()
    headers = {"X-Session-Id": "s"}
    async with openai_home(tmp_path, held, says("about the first"), says("about the second")) as home:

        async def ask(text: str) -> None:
            answers[text] = text_of(await home.chunks(text, extra_headers=headers))

        async with anyio.create_task_group() as group:
            group.start_soon(ask, "first")
            await held.reached.wait()
            group.start_soon(ask, "second")
            async for event in home.agent.follow(await home.agent.find("s")):
                if isinstance(event, Entry) and isinstance(event.body, Input) and event.body.text == "second":
                    held.release()
                    break
    assert answers == {"first": "about the first", "second": "about the second"}


async def test_a_restart_in_the_middle_is_an_error_and_the_same_key_gets_the_completion_afterwards(
    tmp_path: Path,
) -> None:
    held, headers = stalls("one moment"), {"Idempotency-Key": "k"}
    async with openai_home(tmp_path, held, says("never")) as home, client_of(home.url, max_retries=0) as once:

        async def interrupted(headers: dict[str, str], expected: str | None) -> None:
            with pytest.raises(openai.APIStatusError, match="restart") as caught:
                await once.chat.completions.create(
                    model="outrider", messages=[{"role": "user", "content": "go"}], extra_headers=headers
                )
            assert (caught.value.status_code, caught.value.response.headers.get("x-should-retry")) == (503, expected)

        async with anyio.create_task_group() as group:
            group.start_soon(interrupted, headers, None)
            group.start_soon(interrupted, dict[str, str](), "false")
            with anyio.fail_after(60):
                await held.reached.wait()
                while len(home.model.prompts) < 2:
                    await anyio.sleep(0.01)
            await home.agent.drain("a restart is under way")
    async with openai_home(tmp_path, says("done after all")) as home:
        answer = await home.ask("go", extra_headers=headers)
    assert answer.choices[0].message.content == "done after all"


async def test_a_model_is_chosen_by_a_name_with_a_provider(tmp_path: Path) -> None:
    async with openai_home(tmp_path, says("from the script"), says("unused")) as home:
        ours = await home.ask("hi", model="gpt-4o")
        with pytest.raises(openai.NotFoundError, match="needs a key"):
            await home.ask("hi", model="anthropic:claude-sonnet-5")
        ids = [model.id async for model in home.client.models.list()]
        model = await home.client.models.retrieve("outrider")
        with pytest.raises(openai.NotFoundError):
            await home.client.models.retrieve("nonsense")
    assert (ours.model, ours.choices[0].message.content) == ("outrider", "from the script")
    assert ids[:2] == ["outrider", "practice"]
    assert set(ids[2:]) <= {"codex"}, "what is installed here"
    assert (model.id, model.object, model.owned_by) == ("outrider", "model", "outrider")
