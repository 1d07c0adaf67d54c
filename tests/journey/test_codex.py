"""Codex as a runtime, with the real program against a scripted model: what it does is in our journal, once."""

from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from outrider.core.events import Bound, Reply
from outrider.core.prompt import AssistantMessage, ToolMessage
from outrider.testing.scripted_model import ScriptedCall, ScriptedModel, says
from outrider.testing.scripted_server.script import ErrorStatus, script
from outrider.testing.scripted_server.server import open_scripted_server
from tests.journey.support import Person
from tests.support.codex import MODEL, codex_home, collect_notes, open_codex, shell, summarize, texts, use_codex

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f64540"
    "0000000049454e44ae426082"
)


@pytest.mark.behaviour("A4")
async def test_a_turn_has_the_shape_of_a_native_one_and_names_thread_and_turn(tmp_path: Path) -> None:
    async with (
        open_scripted_server(script(says("hello", reasoning="hm"))) as server,
        open_codex(tmp_path, server.url) as agent,
    ):
        with anyio.fail_after(60):
            done = await agent.say("hi", session="s")
            bound = [e.body for e in await agent.journal(await agent.find("s")) if isinstance(e.body, Bound)][-1]
    assert (done.text, done.outcome, done.steps, done.error, done.cost) == ("hello", "done", 1, "", None)
    assert (done.thread, done.turn) == (bound.thread, bound.turn)
    assert done.turn
    assert done.usage.input > 0


@pytest.mark.needs("bubblewrap")
@pytest.mark.behaviour("A3")
async def test_commands_and_patches_are_in_the_journal_with_their_results_in_order(tmp_path: Path) -> None:
    patch = ScriptedCall(
        "apply_patch", raw="*** Begin Patch\n*** Add File: a.txt\n+grüße\n*** End Patch\n", custom=True
    )
    lines = script(says("looking", shell("echo 'ü 🦀'; exit 3")), says("", patch), says("done"))
    async with open_scripted_server(lines) as server, open_codex(tmp_path, server.url) as agent:
        with anyio.fail_after(60):
            done = await agent.say("go", session="s")
            journal = await agent.journal(await agent.find("s"))
    assert done.text == "done"
    assert (tmp_path / "work" / "a.txt").read_text() == "grüße\n"
    assert [line for line in summarize(journal) if line != "begun"] == [
        "input go",
        "started codex",
        "bound",
        "bound",
        "reply looking",
        "reply shell",
        "result ü 🦀\n\n[exit status 3]",
        "reply patch",
        f"result add {tmp_path / 'work' / 'a.txt'}",
        "reply done",
        "ended done",
    ]


@pytest.mark.needs("bubblewrap")
@pytest.mark.behaviour("A3")
async def test_commands_that_run_at_once_each_keep_their_result(tmp_path: Path) -> None:
    lines = script(says("", shell("sleep 0.5; echo slow"), shell("echo quick")), says("done"))
    async with open_scripted_server(lines) as server, open_codex(tmp_path, server.url) as agent:
        with anyio.fail_after(60):
            await agent.say("go", session="s")
            journal = await agent.journal(await agent.find("s"))
    results = [line for line in summarize(journal) if line.startswith("result")]
    assert sorted(results) == ["result quick\n", "result slow\n"]
    assert summarize(journal)[-2:] == ["reply done", "ended done"]


@pytest.mark.needs("bubblewrap")
@pytest.mark.behaviour("A3")
async def test_a_command_that_fails_at_once_is_in_the_journal_too(tmp_path: Path) -> None:
    lines = script(*(says("", shell("cat /nowhere/at/all")) for _ in range(4)), says("done"))
    async with open_scripted_server(lines) as server, open_codex(tmp_path, server.url) as agent:
        with anyio.fail_after(60):
            await agent.say("go", session="s")
            journal = await agent.journal(await agent.find("s"))
    results = [line for line in summarize(journal) if line.startswith("result")]
    assert len(results) == 4
    assert all("No such file or directory" in line for line in results)


@pytest.mark.needs("bubblewrap")
@pytest.mark.behaviour("A2")
@pytest.mark.behaviour("A3")
async def test_our_own_model_is_not_asked_and_later_reads_what_codex_did(tmp_path: Path) -> None:
    native = ScriptedModel(says(), says(), says("native here"))
    lines = script(says("", shell("echo from-codex")), says("codex here"))
    async with open_scripted_server(lines) as server, open_codex(tmp_path, server.url, native) as agent:
        with anyio.fail_after(60):
            await agent.say("first", session="s")
            assert native.prompts == []
            await agent.change(await agent.find("s"), {"runtime": "native"})
            done = await agent.say("second", session="s")
    (prompt,) = native.prompts
    calls = [call for m in prompt.messages if isinstance(m, AssistantMessage) for call in m.calls]
    results = [result.text for m in prompt.messages if isinstance(m, ToolMessage) for result in m.results]
    assert (done.text, done.thread) == ("native here", "")
    assert [call.args for call in calls] == [{"command": "echo from-codex", "cwd": str(tmp_path / "work")}]
    assert results == ["from-codex\n"]
    assert [m.text for m in prompt.messages if isinstance(m, AssistantMessage)] == ["", "codex here"]


@pytest.mark.behaviour("A1")
async def test_codex_gets_the_history_of_another_runtime_once(tmp_path: Path) -> None:
    native = ScriptedModel(says("the word is plum"), says(), says("and pear"))
    lines = script("codex one", "codex two", "codex three")
    async with (
        open_scripted_server(lines) as server,
        open_codex(tmp_path, server.url, native, runtime_name="native") as agent,
    ):
        with anyio.fail_after(60):
            notes = collect_notes()
            session = await agent.session("s")
            await agent.say("what is the word?", session="s")
            await agent.change(session, {"runtime": "codex"})
            await agent.say("say it", session="s", on_event=notes)
            await agent.change(session, {"runtime": "native"})
            await agent.say("another?", session="s")
            await agent.change(session, {"runtime": "codex"})
            last = await agent.say("both", session="s")
    first, second = (texts(request) for request in server.requests)
    assert ("the word is plum" in first, "and pear" in first) == (True, False)
    assert (second.count("the word is plum"), second.count("and pear"), second.count("codex one")) == (1, 1, 1)
    assert last.text == "codex two"
    assert any("receives what was said" in note for note in notes.notes)


@pytest.mark.behaviour("A8")
async def test_without_codex_a_turn_fails_with_how_to_install_it_and_how_to_continue(tmp_path: Path) -> None:
    async with open_codex(tmp_path, "http://127.0.0.1:9/v1", codex_command="/nowhere/codex") as agent:
        with anyio.fail_after(60):
            done = await agent.say("hi", session="s")
    assert done.outcome == "failed"
    assert "/nowhere/codex" in done.error
    assert "npm install -g @openai/codex" in done.error
    assert "/runtime native" in done.error


@pytest.mark.behaviour("A13")
async def test_a_rejected_login_is_reported_as_one_and_other_errors_unchanged(tmp_path: Path) -> None:
    lines = script([ErrorStatus(401, "bad token"), ErrorStatus(400, "that model is asleep"), says("fine")])
    async with open_scripted_server(lines) as server, open_codex(tmp_path, server.url) as agent:
        with anyio.fail_after(60):
            refused = await agent.say("hi", session="s")
            broken = await agent.say("hi", session="s")
            fine = await agent.say("hi", session="s")
    assert (refused.outcome, broken.outcome, fine.text) == ("failed", "failed", "fine")
    assert "codex login" in refused.error
    assert "codex login" not in broken.error
    assert "that model is asleep" in broken.error
    assert "/runtime native" in broken.error


@pytest.mark.behaviour("A13")
async def test_a_missing_login_is_reported_before_a_model_is_asked(tmp_path: Path) -> None:
    async with open_scripted_server(script("never")) as server:
        home = codex_home(tmp_path, server.url)
        written = (
            (home / "config.toml").read_text().replace("requires_openai_auth = false", "requires_openai_auth = true")
        )
        (home / "config.toml").write_text(written)
        async with open_codex(tmp_path, server.url) as agent:
            with anyio.fail_after(60):
                done = await agent.say("hi", session="s")
        assert (done.outcome, server.requests) == ("failed", [])
    assert "codex login" in done.error


async def test_a_message_that_never_reached_codex_is_sent_with_the_next_one(tmp_path: Path) -> None:
    async with open_scripted_server(script("one", "two")) as server:
        with anyio.fail_after(60):
            async with open_codex(tmp_path, server.url) as agent:
                await agent.say("say pear", session="s")
            async with open_codex(tmp_path, server.url, codex_command="/nowhere/codex") as agent:
                lost = await agent.say("remember plum", session="s")
            async with open_codex(tmp_path, server.url) as agent:
                done = await agent.say("third", session="s")
    assert (lost.outcome, done.text) == ("failed", "two")
    last = texts(server.requests[-1])
    assert (last.count("say pear"), last.count("remember plum"), last.count("third")) == (1, 1, 1)


async def test_messages_of_failed_turns_are_not_sent_to_codex_again(tmp_path: Path) -> None:
    lines = script([*(ErrorStatus(401, "bad token") for _ in range(3)), says("fine")])
    async with open_scripted_server(lines) as server, open_codex(tmp_path, server.url) as agent:
        with anyio.fail_after(60):
            for number in range(3):
                assert (await agent.say(f"say plum {number}", session="s")).outcome == "failed"
            assert (await agent.say("last", session="s")).text == "fine"
    last = texts(server.requests[-1])
    assert [last.count(f"say plum {number}") for number in range(3)] == [1, 1, 1]


async def test_returning_to_the_default_model_of_codex_uses_and_records_that_one(tmp_path: Path) -> None:
    async with (
        open_scripted_server(script("one", "two", "three")) as server,
        open_codex(tmp_path, server.url) as agent,
    ):
        with anyio.fail_after(60):
            session = await agent.session("s")
            for model in ("", "gpt-5.4", ""):
                await agent.change(session, {"codex.model": model})
                await agent.say("hi", session="s")
            replies = [e.body.model for e in await agent.journal(session) if isinstance(e.body, Reply)]
        asked = [request.body.get("model") for request in server.requests]
    assert asked == replies == [MODEL, "gpt-5.4", MODEL]


async def test_an_image_reaches_codex(tmp_path: Path) -> None:
    async with open_scripted_server(script("a dot")) as server, open_codex(tmp_path, server.url) as agent:
        with anyio.fail_after(60):
            await agent.say("what is it?", session="s", images=[PIXEL])
    assert "data:image/png;base64," in texts(server.requests[0])


async def test_the_persons_own_settings_of_codex_are_not_changed(tmp_path: Path) -> None:
    (tmp_path / "work" / ".git").mkdir(parents=True)
    async with open_scripted_server(script("one")) as server:
        settings = codex_home(tmp_path, server.url) / "config.toml"
        before = settings.read_text()
        async with open_codex(tmp_path, server.url) as agent:
            with anyio.fail_after(60):
                assert (await agent.say("hi", session="s")).text == "one"
        assert settings.read_text() == before


@pytest.mark.behaviour("A1")
async def test_the_environment_can_choose_codex_for_a_command(tmp_path: Path) -> None:
    async with open_scripted_server(script("from codex")) as server:
        person = Person(tmp_path)
        use_codex(person, server.url)
        ran = await anyio.to_thread.run_sync(lambda: person.types("run", "hi"))
    assert (ran.code, ran.out) == (0, "from codex\n")
