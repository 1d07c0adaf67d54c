"""Turns that another agent runs: what is sent, what is shown, what is recorded, and that nothing runs here."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import structs
from starlette.responses import JSONResponse, Response

import outrider
from outrider.app.agent import Agent
from outrider.channels.http.app import ENDPOINTS
from outrider.config.load import load
from outrider.core.errors import Refused
from outrider.core.events import Asked, Begun, Delta, Ended, Entry, Event, Input, Reply, Result, Started
from outrider.core.store_port import Session
from outrider.core.turn_result import TurnResult
from outrider.core.types import Usage
from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import Script, ScriptRule, Stall, script
from outrider.testing.scripted_server.server import ScriptedServer, open_scripted_server
from tests.journey.support import Person
from tests.support.acp import World, do, tool
from tests.support.cutting import cutting
from tests.support.http import client, serving
from tests.support.in_process import InProcessPerson
from tests.support.remote import FarOutriderHome, chunk, far_outrider, foreign_server, raw, stream
from tests.support.survivors import end_all
from tests.support.up import up

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
TERMINAL = "terminal:test"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)


@asynccontextmanager
async def near(folder: Path, url: str, **more: str) -> AsyncGenerator[Agent]:
    """A home that forwards its turns, and whose own model does not exist."""
    home = folder / "near"
    home.mkdir(mode=0o700, exist_ok=True)
    others = {name.replace("_", "."): value for name, value in more.items()}
    config = load(home, {}, {"remote.url": url, "model.name": "nobody:knows", "remote.poll": "0.1", **others})
    with anyio.fail_after(90):
        async with outrider.open(config=config, workspace=_folder(folder / "work")) as agent:
            yield agent


def _folder(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    return path


def far_settings(server: ScriptedServer) -> dict[str, str]:
    return {"model.name": "openai-chat:scripted", "model.url": server.url, "model.key": "none"}


def bodies(entries: list[Entry], kind: type[Any]) -> list[Any]:
    return [entry.body for entry in entries if isinstance(entry.body, kind)]


async def journal(agent: Agent, name: str = "s") -> list[Entry]:
    return list(await agent.journal(await agent.find(name)))


async def wait_for(agent: Agent, session: Session, kind: type[object], after: int = 0) -> Entry:
    async with aclosing(agent.follow(session, after)) as events:
        async for event in events:
            if isinstance(event, Entry) and isinstance(event.body, kind):
                return event
    raise AssertionError("a follower never ends by itself")


# C1, C2: settings


@pytest.mark.behaviour("C1")
def test_the_address_comes_from_the_environment_before_the_file_and_blank_is_unset(tmp_path: Path) -> None:
    person = InProcessPerson(tmp_path)
    person.environ |= {"OUTRIDER_MODEL": "practice"}

    def url(value: str | None = None) -> str:
        environ = {} if value is None else {"OUTRIDER_REMOTE_URL": value}
        return person.types("config", "get", "remote.url", environ=environ).out.strip()

    assert url() == ""
    here = person.types("run", "list the files")
    assert (here.code, "Remote" in here.out) == (0, False)
    assert person.types("config", "set", "remote.url", "http://127.0.0.1:1/").code == 0
    assert (url(), url("http://127.0.0.1:2//"), url("  ")) == ("http://127.0.0.1:1", "http://127.0.0.1:2", url())
    there = person.types("run", "list the files")
    assert (there.code, there.err) == (1, "")
    assert there.out.startswith("Remote connection error: cannot connect to 127.0.0.1: ")
    assert person.types("config", "set", "remote.url", "ftp://127.0.0.1").code == 2


@pytest.mark.behaviour("C2")
async def test_every_turn_of_every_channel_is_forwarded_and_nothing_runs_here(tmp_path: Path) -> None:
    home = tmp_path / "near"
    home.mkdir(mode=0o700)
    config = load(home, {}, {"model.name": "practice"})
    async with outrider.open(config=config, workspace=_folder(tmp_path / "work")) as agent:
        await agent.change(await agent.session("s"), {"runtime": "native"})
    async with foreign_server() as far, near(tmp_path, far.url) as agent, serving(agent, ENDPOINTS) as url:
        assert (await agent.say("write a.txt saying x", session="s")).text == "Hello there."
        with pytest.raises(Refused, match="native cannot run turns here while they are forwarded"):
            await agent.change(await agent.find("s"), {"runtime": "native"})
        async with client(url) as http:
            chat = {"model": "outrider", "messages": [{"role": "user", "content": "write b.txt saying x"}]}
            completion = (await http.post("/v1/chat/completions", json=chat)).json()
            assert completion["choices"][0]["message"]["content"] == "Hello there."
            response = (await http.post("/v1/responses", json={"input": "write c.txt saying x"})).json()
            assert response["output"][0]["content"][0]["text"] == "Hello there."
            refused = await http.post("/v1/sessions", json={"name": "n", "model": "native"})
            assert (refused.status_code, "remote.url" in refused.json()["error"]["message"]) == (400, True)
            tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
            assert (await http.post("/v1/chat/completions", json={**chat, "tools": tools})).status_code == 400
        assert {entry.body.runtime for entry in await journal(agent) if isinstance(entry.body, Started)} == {"remote"}
    assert (len(far.requests), list((tmp_path / "work").iterdir())) == (3, [])


@pytest.mark.behaviour("C2")
async def test_a_turn_that_was_open_when_the_remote_was_set_ends_and_says_why(tmp_path: Path) -> None:
    home = tmp_path / "near"
    home.mkdir(mode=0o700)
    async with (
        open_scripted_server(script(Stall("headers"))) as server,
        outrider.open(config=load(home, {}, far_settings(server))) as agent,
    ):
        await agent.post("work", session=await agent.session("s"), address=TERMINAL)
        await server.wait_async(1)
    async with foreign_server() as far, near(tmp_path, far.url) as agent:
        await agent.resume_all()
        await agent.wait(await agent.find("s"))
        assert "started by native" in bodies(await journal(agent), Ended)[0].reason
        assert (await agent.say("again", session="s")).text == "Hello there."


# C3, C4: what is sent


@pytest.mark.behaviour("C3")
@pytest.mark.parametrize(("path", "key"), [("", ""), ("/v1", "k-1234567890"), ("/v1/", "")])
async def test_the_request_has_the_session_in_a_header_and_the_key_if_there_is_one(
    tmp_path: Path, path: str, key: str
) -> None:
    async with foreign_server() as far, near(tmp_path, far.url + path, remote_key=key) as agent:
        await agent.say("hello", session="s")
        session = await agent.find("s")
    ((headers, body),) = far.requests
    assert headers.get("authorization", "") == (f"Bearer {key}" if key else "")
    assert (headers["x-session-id"], headers["x-hermes-session-id"]) == (session.id, session.id)
    assert (body["stream"], body["stream_options"], body["model"]) == (True, {"include_usage": True}, "foreign-1")


@pytest.mark.behaviour("C3")
async def test_what_the_remote_runtime_sends_is_a_request_that_our_own_chat_api_takes(tmp_path: Path) -> None:
    """The request has the shape that Hermes Agent sends to a remote agent: model, messages, stream, its header."""
    async with open_scripted_server(script(says("one"), says("two"))) as server:
        with far_outrider(tmp_path / "far", far_settings(server)) as far:
            settings = {"remote_key": far.settings()["remote.key"], "remote_api": "chat"}
            async with near(tmp_path, far.url, **settings) as agent:
                first, second = [(await agent.say(text, session="s")).text for text in ("first", "second")]
                session = (await agent.find("s")).id
            async with client(far.url, "gateway") as http:
                chat = {"model": "hermes-agent", "stream": True, "messages": [{"role": "user", "content": "third"}]}
                hermes = await http.post("/v1/chat/completions", json=chat, headers={"X-Hermes-Session-Id": session})
            assert (first, second, hermes.status_code, len(far.journals())) == ("one", "two", 200, 1)
            assert [one.text for one in bodies(far.journals()[0], Input)] == ["first", "second", "third"]


@pytest.mark.behaviour("C4")
async def test_context_earlier_texts_and_the_new_input_are_sent_and_no_tool_traffic(tmp_path: Path) -> None:
    home = tmp_path / "near"
    home.mkdir(mode=0o700)
    async with outrider.open(config=load(home, {}, {"model.name": "practice"})) as agent:
        await agent.say("write a.txt saying x", session="s")
        before = bodies(await journal(agent), Reply)[-1].text
    async with foreign_server() as far, near(tmp_path, far.url) as agent:
        far.answer = lambda body: JSONResponse({"error": {"message": "no"}}, 500)
        assert (await agent.say("and then?", session="s")).outcome == "failed"
        far.answer = lambda body: stream("Fine.")
        await agent.say("look", session="s", images=[PNG])
        await agent.change(await agent.find("s"), {"instructions": "Be brief."})
        await agent.say("thanks", session="s")
    messages = far.requests[-1][1]["messages"]
    picture = messages[4]["content"]
    assert [part["type"] for part in picture] == ["text", "image_url"]
    assert picture[1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert [(one["role"], one["content"]) for one in messages if one is not messages[4]] == [
        ("system", "Be brief."),
        ("user", "write a.txt saying x"),
        ("assistant", before),
        ("user", "and then?"),
        ("assistant", "Fine."),
        ("user", "thanks"),
    ]
    assert "system" not in {one["role"] for one in far.requests[0][1]["messages"]}


# C5, C6: what is shown and recorded


@pytest.mark.behaviour("C5")
@pytest.mark.behaviour("C6")
async def test_deltas_are_shown_as_they_come_and_the_result_has_the_shape_of_a_local_one(tmp_path: Path) -> None:
    parts: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event, Delta) and event.kind == "text":
            parts.append(event.text)

    async with foreign_server() as far, near(tmp_path, far.url) as agent:
        turn = await agent.say("hi", session="s", on_event=watch)
        entries = await journal(agent)
    assert (parts, bodies(entries, Reply)[0].model) == (["Hello ", "there."], "foreign-1")
    home = tmp_path / "other"
    home.mkdir(mode=0o700)
    async with (
        open_scripted_server(script(says("Hello there."))) as server,
        outrider.open(config=load(home, {}, far_settings(server))) as agent,
    ):
        local = await agent.say("hi", session="s")
    fixed = {"session": "", "usage": Usage(), "seq": 0, "thread": "", "turn": "", "cost": None}
    assert structs.replace(turn, **fixed) == structs.replace(local, **fixed)
    assert turn.usage == Usage(11, 5)


ERRORS: Mapping[str, tuple[Callable[[dict[str, Any]], Response], str]] = {
    "401": (
        lambda body: JSONResponse({"error": {"message": "bad key", "code": "invalid_api_key"}}, 401),
        "Remote error (401): bad key",
    ),
    "500 as text": (lambda body: Response("it broke", 500), "Remote error (500): it broke"),
    "500 as a page": (
        lambda body: Response("<html>oops</html>", 500, media_type="text/html"),
        "Remote error (500): Internal Server Error",
    ),
    "a redirect": (
        lambda body: Response(status_code=307, headers={"location": "http://127.0.0.1:1/"}),
        "Remote error (307): it redirects to another address, which is not followed; check remote.url",
    ),
    "garbage": (
        lambda body: raw(b"data: {not json\n\n"),
        "Remote error (200): not a chat completion (JSON is malformed: object keys must be strings (byte 1)): "
        "{not json",
    ),
    "no stream": (lambda body: raw(b"hello\n\n"), "Remote error (200): not an event stream: hello"),
    "a page": (
        lambda body: raw(b"<html>", media_type="text/html"),
        "Remote error (200): a web page instead of a reply; check remote.url",
    ),
    "an error in the stream": (
        lambda body: raw(chunk(choices=[], error={"message": "overloaded", "code": 503})),
        "Remote error (503): overloaded",
    ),
    "content of another type": (
        lambda body: raw(chunk(choices=[{"delta": {"content": {"parts": ["x"]}}, "finish_reason": "stop"}])),
        "Remote error (200): the reply is empty; fields of an unknown type: choices[0].delta.content",
    ),
    "an empty reply": (lambda body: stream(), "Remote error (200): the reply is empty"),
    "a tool call": (
        lambda body: stream(finish="tool_calls"),
        "Remote error (200): it asked for a tool call, and it was offered none",
    ),
    "nothing": (lambda body: raw(), "Remote connection error: the stream ended before the reply did"),
}


@pytest.mark.behaviour("C5")
async def test_an_error_becomes_the_reply_and_the_input_can_be_sent_again(tmp_path: Path) -> None:
    async with foreign_server() as far, near(tmp_path, far.url) as agent:
        for name, (answer, words) in ERRORS.items():
            far.answer = answer
            turn = await agent.say("hi", session=name)
            assert (turn.text, turn.outcome, turn.error) == (words, "failed", words), name
            far.answer = lambda body: stream("Fine.")
            again = await agent.say("again", session=name)
            assert (again.text, again.outcome) == ("Fine.", "done")
            assert [one["content"] for one in far.requests[-1][1]["messages"]] == ["hi", "again"], name


@pytest.mark.behaviour("C5")
async def test_a_cut_reply_is_kept_as_partial_and_a_stall_is_bounded(tmp_path: Path) -> None:
    async with foreign_server() as far, near(tmp_path, far.url, remote_patience="0.3") as agent:
        far.answer = lambda body: raw(chunk("Half a "), chunk("reply"))
        turn = await agent.say("hi", session="s")
        assert (turn.text, turn.outcome) == ("Half a reply", "failed")
        assert turn.cut.startswith("partial")
        assert turn.error == "Remote connection error: the stream ended before the reply did"
        far.answer = far.stall_after("Only ", "this")
        turn = await agent.say("hi", session="s")
        assert (turn.text, turn.cut.startswith("partial")) == ("Only this", True)
        assert turn.error == "Remote connection error: 127.0.0.1: nothing was sent for 0.3 s"
        far.answer = lambda body: stream("Cut", finish="length")
        assert (await agent.say("hi", session="s")).cut == "length"
        whole: dict[str, Any] = {"choices": [{"message": {"content": "Whole."}, "finish_reason": "stop"}], "usage": {}}
        far.answer = lambda body: JSONResponse(whole)
        assert (await agent.say("hi", session="s")).text == "Whole."


@pytest.mark.behaviour("C5")
async def test_a_reply_is_read_whatever_the_type_of_the_fields_around_it(tmp_path: Path) -> None:
    choice = {"index": "0", "delta": {"content": "Fine.", "reasoning": ["why"]}, "finish_reason": "stop"}
    odd = chunk(choices=[choice], usage={"prompt_tokens": "11", "completion_tokens": 5, "prompt_tokens_details": []})
    async with foreign_server() as far, near(tmp_path, far.url) as agent:
        far.answer = lambda body: raw(odd, b"data: [DONE]\n\n")
        turn = await agent.say("hi", session="s")
    assert (turn.text, turn.outcome, turn.usage) == ("Fine.", "done", Usage(11, 5))


# C7: stale generations never speak


@pytest.mark.behaviour("C7")
@pytest.mark.promise("L2")
async def test_nothing_of_a_stream_is_shown_or_recorded_after_a_stop_followed_at_once_by_a_message(
    tmp_path: Path,
) -> None:
    shown: list[Event] = []
    turns: list[TurnResult] = []
    async with foreign_server() as far, near(tmp_path, far.url) as agent, anyio.create_task_group() as group:
        far.answer = far.stall_after("Old ", "words")
        session = await agent.session("s")

        async def follow() -> None:
            async for event in agent.follow(session):
                shown.append(event)

        group.start_soon(follow)
        await agent.post("first", session=session, address=TERMINAL)
        with anyio.fail_after(60):
            while not any(isinstance(event, Delta) and event.text == "words" for event in shown):
                await anyio.sleep(0.01)
        await agent.stop(session)
        far.answer = lambda body: stream("New words")
        turns.append(await agent.say("second", session="s", address=TERMINAL))
        await far.closed.wait()
        group.cancel_scope.cancel()
    assert [(turn.text, turn.outcome) for turn in turns] == [("New words", "done")]
    entries = await journal_of(tmp_path)
    assert [one.text for one in bodies(entries, Reply)] == ["New words"]
    ends = [(one.outcome, one.partial) for one in bodies(entries, Ended)]
    assert ends == [("interrupted", "Old words"), ("done", "")]
    stopped = next(n for n, one in enumerate(shown) if isinstance(one, Entry) and isinstance(one.body, Ended))
    assert [one.text for one in shown[stopped:] if isinstance(one, Delta)] == ["New words"]


async def journal_of(folder: Path) -> list[Entry]:
    async with outrider.open(config=load(folder / "near", {}, {"model.name": "practice"})) as agent:
        return await journal(agent)


@pytest.mark.behaviour("C7")
@pytest.mark.parametrize("how", ["stop", "delete"])
async def test_whatever_ends_a_turn_closes_its_stream_and_the_next_session_is_served(tmp_path: Path, how: str) -> None:
    async with foreign_server() as far, near(tmp_path, far.url) as agent:
        far.answer = far.stall_after("Old")
        session = await agent.session("s")
        await agent.post("first", session=session, address=TERMINAL)
        async with aclosing(agent.follow(session)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    break
        await (agent.stop(session) if how == "stop" else agent.delete(session))
        await far.closed.wait()
        far.answer = lambda body: stream("New")
        assert (await agent.say("hello", session="new")).text == "New"


# C10: another Outrider


RULES = Script(
    rules=(
        ScriptRule("write", ((says("I write.", call("write", path="did", content="x\n")),), (says("Written."),))),
        ScriptRule("ask", ((says("", call("shell", command="echo x >> did", needs=["network"])),), (says("Asked."),))),
        ScriptRule("hang", ((Stall("stream"), says("Never said to its end")),)),
        ScriptRule("long", ((says("word " * 2_000),),)),
        ScriptRule(".*", ((says("Hello from afar."),),)),
    )
)


@pytest.fixture
async def far(tmp_path: Path) -> AsyncGenerator[FarOutriderHome]:
    async with open_scripted_server(RULES) as server:
        with far_outrider(tmp_path / "far", far_settings(server)) as home:
            yield home


def near_of(folder: Path, far: FarOutriderHome, **more: str) -> Any:
    return near(folder, far.url, remote_key=far.settings()["remote.key"], **more)


@pytest.mark.behaviour("C10")
async def test_another_outrider_runs_the_turn_in_one_session_and_its_calls_are_in_the_journal_here(
    tmp_path: Path, far: FarOutriderHome
) -> None:
    async with near_of(tmp_path, far) as agent:
        turn = await agent.say("write it", session="s", address=TERMINAL)
        assert (turn.text, turn.outcome, turn.steps, far.effects()) == ("Written.", "done", 2, 1)
        assert (await agent.say("hello", session="s", address=TERMINAL)).text == "Hello from afar."
        kinds = [type(entry.body).__name__.lower() for entry in await journal(agent)]
    first = ["input", "started", "bound", "reply", "begun", "result", "reply", "bound", "ended"]
    assert kinds == [*first, "input", "started", "bound", "reply", "bound", "ended"]
    assert [one.text for one in bodies(far.journals()[0], Input)] == ["write it", "hello"]
    assert (len(far.journals()), list((tmp_path / "work").iterdir())) == (1, [])


@pytest.mark.behaviour("C10")
@pytest.mark.needs("sandbox")
@pytest.mark.parametrize(("answer", "effects"), [("once", 1), ("no", 0)])
async def test_a_question_of_the_other_side_is_answered_here_also_after_a_restart(
    tmp_path: Path, far: FarOutriderHome, answer: str, effects: int
) -> None:
    async with near_of(tmp_path, far) as agent:
        session = await agent.session("s")
        await agent.post("ask first", session=session, address=TERMINAL)
        asked = (await wait_for(agent, session, Asked)).body
        assert isinstance(asked, Asked)
        assert (asked.needs, asked.request and asked.request.command) == (("remote:network",), "echo x >> did")
        assert "echo x >> did" in asked.question
    async with near_of(tmp_path, far) as agent:
        await agent.resume_all()
        (again,) = await agent.questions(await agent.find("s"))
        assert (again, far.effects()) == (asked, 0)
        assert await agent.answer(await agent.find("s"), again, answer)
        turn = await agent.wait(await agent.find("s"))
        assert turn
        assert (turn.text, turn.outcome, far.effects()) == ("Asked.", "done", effects)


@pytest.mark.behaviour("C10")
@pytest.mark.needs("sandbox")
async def test_a_question_that_nobody_can_answer_is_denied_there(tmp_path: Path, far: FarOutriderHome) -> None:
    async with near_of(tmp_path, far) as agent:
        turn = await agent.say("ask first", session="s", address="pipe:test")
        assert (turn.text, turn.outcome, far.effects()) == ("Asked.", "done", 0)


@pytest.mark.behaviour("C7")
@pytest.mark.behaviour("C10")
async def test_a_stop_here_stops_the_turn_there_and_the_next_message_is_answered(
    tmp_path: Path, far: FarOutriderHome
) -> None:
    async with near_of(tmp_path, far) as agent:
        session = await agent.session("s")
        await agent.post("hang on", session=session, address=TERMINAL)
        async with aclosing(agent.follow(session)) as events:
            async for event in events:
                if isinstance(event, Delta) and event.kind == "text":
                    break
        await agent.stop(session)
        turn = await agent.say("hello", session="s", address=TERMINAL)
        assert (turn.text, turn.outcome) == ("Hello from afar.", "done")
        assert [one.text for one in bodies(await journal(agent), Reply)] == ["Hello from afar."]
    assert [one.outcome for one in bodies(far.journals()[0], Ended)] == ["interrupted", "done"]


@pytest.mark.behaviour("C10")
@pytest.mark.needs("sandbox")
async def test_a_message_in_mid_turn_reaches_the_turn_there(tmp_path: Path, far: FarOutriderHome) -> None:
    async with near_of(tmp_path, far) as agent:
        session = await agent.session("s")
        await agent.post("ask first", session=session, address=TERMINAL)
        asked = (await wait_for(agent, session, Asked)).body
        assert isinstance(asked, Asked)
        await agent.post("meanwhile", session=session, address=TERMINAL)
        while len(bodies(far.journals()[0], Input)) < 2:
            await anyio.sleep(0.01)
        assert await agent.answer(session, asked, "no")
        turn = await agent.wait(await agent.find("s"))
        assert turn
        assert (turn.outcome, len(bodies(await journal(agent), Ended)), len(bodies(far.journals()[0], Ended))) == (
            "done",
            1,
            1,
        )


@pytest.mark.behaviour("C10")
@pytest.mark.promise("L8")
async def test_a_turn_is_complete_over_a_network_that_cuts_every_connection(
    tmp_path: Path, far: FarOutriderHome
) -> None:
    with cutting(int(far.url.rpartition(":")[2]), seed=7) as proxy:
        key = far.settings()["remote.key"]
        async with near(tmp_path, proxy.url, remote_key=key, remote_api="sessions") as agent:
            turn = await agent.say("write it", session="s", address=TERMINAL)
            for _ in range(20):  # the very first requests may be cut, and then the turn says so
                if turn.outcome != "done":
                    turn = await agent.say("write it", session="s", address=TERMINAL)
            assert (turn.outcome, turn.text) == ("done", "Written.")
            entries = await journal(agent)
    replies = bodies(far.journals()[0], Reply)
    assert proxy.cuts > 0
    assert [one.text for one in bodies(entries, Reply) if not one.text.startswith("Remote ")] == [
        one.text for one in replies
    ]


@pytest.mark.behaviour("C10")
@pytest.mark.needs("sandbox")
@pytest.mark.promise("L6")
async def test_a_background_task_of_the_other_side_is_told_here_once(tmp_path: Path) -> None:
    wait = "mkfifo gate; cat gate"
    rules = Script(
        rules=(
            ScriptRule("succeeded", ((says("It is done."),),)),
            ScriptRule("start", ((says("", call("shell", command=wait, background=True)),), (says("Started."),))),
        )
    )
    async with open_scripted_server(rules) as server:
        with far_outrider(tmp_path / "far", far_settings(server)) as far:
            async with near_of(tmp_path, far) as agent:
                session = await agent.session("s")
                await agent.say("start it", session="s", address=TERMINAL)
                head, gate = (await agent.find("s")).head, far.workspaces()[0] / "gate"
                while not gate.exists():
                    await anyio.sleep(0.01)
                await anyio.to_thread.run_sync(gate.write_text, "open")
                entry = await wait_for(agent, session, Ended, after=head)
                entries = await journal(agent)
            notices = [one for one in bodies(entries, Input) if one.source == "task"]
            assert [one.address for one in notices] == [TERMINAL]
            assert (bodies(entries, Reply)[-1].text, entry.seq) == ("It is done.", entries[-1].seq)
            assert [one.source for one in bodies(far.journals()[0], Input)] == ["person", "task"]


@pytest.mark.behaviour("B3")
@pytest.mark.behaviour("C10")
@pytest.mark.needs("sandbox")
async def test_the_other_side_promises_a_notice_only_where_one_can_be_delivered_here(tmp_path: Path) -> None:
    start = call("shell", command="cat", interactive=True, background=True)
    rules = Script(rules=(ScriptRule("start", ((says("", start),), (says("Started."),))),))
    async with open_scripted_server(rules) as server:
        with far_outrider(tmp_path / "far", far_settings(server)) as far:
            async with near_of(tmp_path, far) as agent:
                for name, address in (("piped", "pipe:test"), ("chat", TERMINAL), ("moved", TERMINAL)):
                    await agent.say("start it", session=name, address=address)
                await agent.say("start it", session="moved", address="chat:completion")
                promised = {
                    name: [json.loads(one.text)["notify"] for one in bodies(await journal(agent, name), Result)]
                    for name in ("piped", "chat", "moved")
                }
            assert promised == {"piped": [False], "chat": [True], "moved": [True, False]}
            channels = [[one.address.partition(":")[0] for one in bodies(one, Input)] for one in far.journals()]
            assert sorted(channels) == [["request"], ["sessions"], ["sessions", "request"]]
    end_all(tmp_path)


@pytest.mark.behaviour("C10")
async def test_arguments_that_a_program_of_the_other_side_reports_late_are_in_the_journal_here(tmp_path: Path) -> None:
    world = World(_folder(tmp_path / "world"))
    acts = do(
        tool("c1", "pending", kind="execute", rawInput={"cwd": "/"}),
        tool("c1", "in_progress"),
        ("until", "go"),
        tool("c1", "completed", kind="execute", rawInput={"command": "ls"}),
        ("say", "Listed."),
    )
    settings = {"model.name": "practice", "runtime.name": "acp", "acp.command": world.command()}
    with far_outrider(tmp_path / "far", settings) as far:
        async with near_of(tmp_path, far) as agent:
            session = await agent.session("s")
            await agent.post(acts, session=session, address=TERMINAL)
            await wait_for(agent, session, Begun)
            (world.agents / "go").touch()
            turn = await agent.wait(await agent.find("s"))
            assert turn
            assert (turn.outcome, turn.text) == ("done", "Listed.")
            (result,) = bodies(await journal(agent), Result)
            (theirs,) = bodies(far.journals()[0], Result)
    assert (result.args, theirs.args) == ({"command": "ls"}, {"command": "ls"})


@pytest.mark.behaviour("C10")
def test_two_homes_in_two_processes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    far, near_person = Person(tmp_path / "a"), InProcessPerson(tmp_path / "b")
    far.environ |= {"OUTRIDER_MODEL": "practice"}
    with up(far) as running:
        near_person.environ |= {"OUTRIDER_REMOTE_URL": running.url, "OUTRIDER_MODEL": "nobody:knows"}
        refused = near_person.types("run", "write a.txt saying x")
        assert (refused.code, refused.out.startswith("Remote error (401): ")) == (1, True)
        near_person.environ |= {"OUTRIDER_REMOTE_KEY": running.key}
        ran = near_person.types("run", "--json", "write a.txt saying x")
        assert (ran.code, ran.lines[-1]["outcome"], ran.lines[-1]["error"]) == (0, "done", "")
        doctor = near_person.types("runtime", "doctor")
        assert (doctor.code, "Outrider" in doctor.out, "accepts the key" in doctor.out) == (0, True, True)
        whole = near_person.types("doctor")
        assert (whole.code, "none is used here" in whole.out, "nobody:knows" in whole.out) == (0, True, False), (
            whole.out
        )
        use = near_person.types("runtime", "use", "native")
        assert (use.code, "remote.url" in use.err) == (2, True)
        assert running.key not in json.dumps([ran.out, ran.err, doctor.out, near_person.types("config", "list").out])
    assert not list(near_person.project.iterdir())
    gone = near_person.types("runtime", "doctor")
    assert (gone.code, "Remote connection error" in gone.out) == (1, True)
