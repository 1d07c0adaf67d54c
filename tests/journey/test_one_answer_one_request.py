"""An answer belongs to one request: it is used once, for exactly what was shown, by every runtime."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

import outrider
from outrider.config.load import load
from outrider.core.approvals import ApprovalRequest
from outrider.core.events import Answered, Asked, Ended, Entry, Result
from outrider.core.ports import ToolContext
from outrider.core.store_port import Session
from outrider.runtimes.codex.approvals import COMMAND
from outrider.testing.scripted_model import ScriptedModel, call, says
from outrider.tools.define import tool
from tests.support import questions
from tests.support.acp import World, do, finished_journal, post
from tests.support.questions import asked
from tests.support.scripted_codex import ScriptedCodex

pytestmark = [pytest.mark.anyio, pytest.mark.promise("S8"), pytest.mark.timeout(180)]
TERMINAL = "terminal:test"
HARMLESS, HARMFUL = "echo harmless", "rm -rf ."


def acp_call(command: str) -> dict[str, Any]:
    return {"toolCallId": "c1", "title": "Run", "kind": "execute", "rawInput": {"command": command}}


@pytest.mark.parametrize("second", [HARMFUL, HARMLESS])
@pytest.mark.parametrize("answer", ["once", "no"])
async def test_an_agent_asks_again_under_the_same_id_and_gets_the_answer_to_that(
    tmp_path: Path, second: str, answer: str
) -> None:
    world = World(tmp_path)
    words = do(["ask", acp_call(HARMLESS)], ["ask", acp_call(second)], ["say", "done"])
    async with world.open_agent() as agent:
        session = await post(agent, words)
        first = await asked(agent, session)
        await agent.answer(session, first, "once")
        again = await asked(agent, session, 2)
        assert [effect["outcome"]["optionId"] for effect in world.effects()] == ["2"]
        assert (again.call, again.ask != first.ask) == (first.call, True)
        assert f"\n| {second}\n" in again.question
        assert (again.digest == first.digest) == (second == HARMLESS)
        await agent.answer(session, again, answer)
        await finished_journal(agent)
    chosen = [effect["outcome"]["optionId"] for effect in world.effects()]
    assert chosen == ["2", "2" if answer == "once" else "3"]


async def test_after_a_restart_an_answer_holds_for_what_was_asked_and_for_nothing_else(tmp_path: Path) -> None:
    """The agent asks for something else under the same id when it is prompted again."""
    world = World(tmp_path)
    words = do(["ask", acp_call(HARMLESS)], ["say", "done"])
    async with world.open_agent() as agent:
        await asked(agent, await post(agent, words))
    (world.agents / "instead").write_text(json.dumps(acp_call(HARMFUL)))
    async with world.open_agent() as agent:
        session = await agent.session("s")
        await agent.answer(session, await asked(agent, session), "once")
        again = await asked(agent, session, 2)
        assert f"\n| {HARMFUL}\n" in again.question
        await agent.answer(session, again, "no")
        await finished_journal(agent)
    assert world.effects()[-1] == {"outcome": {"outcome": "selected", "optionId": "3"}}


@pytest.mark.parametrize("first", ["once", "no"])
async def test_a_later_question_about_a_call_outlives_its_program_and_has_an_answer_of_its_own(
    tmp_path: Path, first: str
) -> None:
    """An agent may ask more than once before it runs a call: the answer is for when it asks again."""
    world = World(tmp_path)
    words = do(["ask", acp_call(HARMLESS)], ["ask", acp_call(HARMFUL)], ["say", "done"])
    async with world.open_agent() as agent:
        session = await post(agent, words)
        await agent.answer(session, await asked(agent, session), first)
        later = await asked(agent, session, 2)
    (world.agents / "silent").touch()
    async with world.open_agent() as agent:
        await agent.resume_all()
        session = await agent.session("s")
        assert [pending.ask for pending in await agent.questions(session)] == [later.ask]
        await agent.answer(session, later, "no")
        journal = await finished_journal(agent)
    assert Answered(later.ask, "no", "owner") in journal
    assert isinstance(journal[-1], Ended)
    assert journal[-1].outcome == "done"
    assert len(world.effects()) == 1


async def test_codex_asks_twice_about_one_item_and_each_request_has_its_own_answer(tmp_path: Path) -> None:
    codex = ScriptedCodex(tmp_path)
    item: dict[str, Any] = {"type": "commandExecution", "command": "make", "cwd": str(codex.work), "commandActions": []}
    requests = [
        {"command": HARMLESS, "cwd": str(codex.work), "approvalId": "one"},
        {"command": HARMFUL, "cwd": str(codex.work), "approvalId": "two"},
        {"command": HARMLESS, "cwd": str(codex.work), "approvalId": "three"},
    ]
    codex.will([{"ask": COMMAND, "item": item, "requests": requests}, {"say": "done"}])
    async with codex.open_agent() as agent:
        session = await agent.session("s")
        await agent.post("go", session=session, address=TERMINAL)
        asked_questions: list[Asked] = []
        with anyio.fail_after(120):
            for number, answer in enumerate(("once", "no", "no"), 1):
                asked_questions.append(await asked(agent, session, number))
                await agent.answer(session, asked_questions[-1], answer)
            await agent.wait(await agent.find(session.id))
    assert [question.question.split("\n")[1] for question in asked_questions] == [
        f"| {HARMLESS}",
        f"| {HARMFUL}",
        f"| {HARMLESS}",
    ]
    assert len({question.ask for question in asked_questions}) == 3
    decisions = [message["result"].get("decision") for message in codex.messages("received") if "result" in message]
    assert [decision for decision in decisions if decision] == ["accept", "decline", "decline"]


class _Changing:
    """A tool whose request depends on a file, as a need depends on where a link leads."""

    def __init__(self, folder: Path) -> None:
        self.target, self.ran = folder / "target", folder / "ran"
        self.target.write_text("first")
        file = self.target
        effects = self.ran

        @tool
        def act(context: ToolContext) -> str:
            """Act on the target."""
            with effects.open("a") as ran:
                ran.write(f"{context.granted}\n")
            return "acted"

        @act.requests_approval
        async def _request(context: ToolContext) -> ApprovalRequest:
            return ApprovalRequest("act", file.read_text(), ("network",), context.session.workspace)

        self.tool = act


async def question(agent: outrider.Agent, session: Session, count: int) -> Asked:
    with anyio.fail_after(60):
        return await questions.asked(agent, session, count)


async def test_what_changed_since_it_was_shown_is_asked_again(tmp_path: Path) -> None:
    changing, home = _Changing(tmp_path), tmp_path / "home"
    model = ScriptedModel(says("", call("act")), says("ok"))
    home.mkdir(mode=0o700)
    async with outrider.open(config=load(home, {}), model=model, tools=[changing.tool], workspace=tmp_path) as agent:
        session = await agent.session("s")
        await agent.post("go", session=session, address=TERMINAL)
        first = await question(agent, session, 1)
        changing.target.write_text("second")
        await agent.answer(session, first, "once")
        again = await question(agent, session, 2)
        assert (again.question.split("\n")[1], changing.ran.exists()) == ("| second", False)
        await agent.answer(session, again, "once")
        with anyio.fail_after(60):
            await agent.wait(await agent.find(session.id))
    assert changing.ran.read_text() == "('network',)\n"


async def test_a_no_is_for_the_call_whatever_has_changed(tmp_path: Path) -> None:
    changing, home = _Changing(tmp_path), tmp_path / "home"
    model = ScriptedModel(says("", call("act")), says("ok"))
    home.mkdir(mode=0o700)
    async with outrider.open(config=load(home, {}), model=model, tools=[changing.tool], workspace=tmp_path) as agent:
        session = await agent.session("s")
        await agent.post("go", session=session, address=TERMINAL)
        first = await question(agent, session, 1)
        changing.target.write_text("second")
        await agent.answer(session, first, "no")
        with anyio.fail_after(60):
            await agent.wait(await agent.find(session.id))
        journal = [entry.body for entry in await agent.journal(session)]
    assert not changing.ran.exists()
    assert len([body for body in journal if isinstance(body, Asked)]) == 1


async def test_a_question_of_an_older_version_is_answered_unless_it_hid_something(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir(mode=0o700)
    work.mkdir()
    plain = call("shell", command="echo plain > plain", needs=["network"])
    hiding = call("shell", command="cat > hidden", stdin="surprise", needs=["network"])
    for name, made in (("plain", plain), ("hidden", hiding)):
        async with outrider.open(
            config=load(home, {}), model=ScriptedModel(says("", made), says("ok")), workspace=work
        ) as agent:
            session = await agent.session(name)
            await agent.post("go", session=session, address=TERMINAL)
            await question(agent, session, 1)
        _forget_what_was_asked(home, session)
        async with outrider.open(
            config=load(home, {}), model=ScriptedModel(says("", made), says("ok")), workspace=work
        ) as agent:
            await agent.resume_all()
            (old,) = await agent.questions(await agent.find(name))
            assert (old.digest, old.request) == ("", None)
            await agent.answer(session, old, "once")
            if name == "hidden":
                again = await question(agent, session, 2)
                assert "\nWith this stdin:\n| surprise\n" in again.question
                await agent.answer(session, again, "once")
            with anyio.fail_after(60):
                await agent.wait(await agent.find(session.id))
    assert {path.name: path.read_text() for path in work.iterdir()} == {"plain": "plain\n", "hidden": "surprise"}


def _forget_what_was_asked(home: Path, session: Session) -> None:
    """Rewrite the question as 0.1.0 would have written it."""
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(home / "store.db")) as db, db:
        (body,) = db.execute("SELECT body FROM entries WHERE session = ? AND kind = 'asked'", (session.id,)).fetchone()
        asked = json.loads(body)
        del asked["digest"], asked["request"]
        db.execute(
            "UPDATE entries SET body = ? WHERE session = ? AND kind = 'asked'", (json.dumps(asked).encode(), session.id)
        )


def outputs(journal: list[Entry]) -> list[str]:
    return [entry.body.text for entry in journal if isinstance(entry.body, Result)]


@pytest.mark.needs("sandbox")
async def test_input_to_a_task_with_permissions_is_asked_about_and_to_others_is_not(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir(mode=0o700)
    work.mkdir()

    def write(text: str, *keys: str, index: int) -> Any:
        def reply(prompt: Any) -> Any:
            started = [
                r.text for m in prompt.messages for r in getattr(m, "results", ()) if "background_started" in r.text
            ]
            return says(
                "", call("tasks", action="write", task=json.loads(started[index])["task"], text=text, keys=keys)
            )

        return reply

    begin = call("shell", command="cat > allowed", interactive=True, background=True, needs=["network"])
    other = call("shell", command="cat > plain", interactive=True, background=True)
    model = ScriptedModel(
        says("", begin),
        says("", other),
        write("to the allowed\u202e one", "enter", index=0),
        write("second\n", index=0),
        write("free\n", "ctrl-d", index=1),
        says("ok"),
        says("ok"),
        says("ok"),
    )
    async with outrider.open(config=load(home, {}), model=model, workspace=work) as agent:
        session = await agent.session("s")
        await agent.post("go", session=session, address=TERMINAL)
        start = await question(agent, session, 1)
        await agent.answer(session, start, "once")
        writing = await question(agent, session, 2)
        (task,) = [task for task in await agent.tasks() if task.spec.grants]
        await agent.answer(session, writing, "once")
        again = await question(agent, session, 3)
        await agent.answer(session, again, "no")
        with anyio.fail_after(60):
            await agent.wait(await agent.find(session.id))
            while not all((work / name).exists() and (work / name).read_text() for name in ("allowed", "plain")):
                await anyio.sleep(0.02)
        await agent.kill_task(task)
        journal = await agent.journal(session)
    assert "\nIts stdin stays open for later input.\n" in start.question
    assert writing.question.split("\n")[:6] == [
        f"Allow this input to a task with network access, in {work}?",
        r"| to the allowed\u202e one",
        "Then these keys:",
        "| enter",
        "To the running task:",
        f"| {task.id}: cat > allowed",
    ]
    assert len([entry for entry in journal if isinstance(entry.body, Asked)]) == 3
    assert [entry.body.answer for entry in journal if isinstance(entry.body, Answered)] == ["once", "once", "no"]
    assert ((work / "allowed").read_text(), (work / "plain").read_text()) == ("to the allowed\u202e one\n", "free\n")


ALLOW_CAT = '[[rules]]\nverdict = "allow"\ntool = "shell"\nargv = ["cat"]\nneeds = ["network"]\n'


@pytest.mark.needs("sandbox")
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, None),
        ({"stdin": "hello"}, "With this stdin:\n| hello"),
        ({"interactive": True, "background": True}, "Its stdin stays open for later input."),
        ({"workdir": "sub"}, "In the folder:\n| sub"),
    ],
)
async def test_a_rule_about_words_does_not_cover_what_else_is_run(
    tmp_path: Path, more: dict[str, Any], expected: str | None
) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir(mode=0o700)
    (work / "sub").mkdir(parents=True)
    (home / "config.toml").write_text(ALLOW_CAT)
    model = ScriptedModel(says("", call("shell", command="cat", needs=["network"], **more)), says("ok"), says("ok"))
    async with outrider.open(config=load(home, {}), model=model, workspace=work) as agent:
        session = await agent.session("s")
        await agent.post("go", session=session, address=TERMINAL)
        if expected is not None:
            waiting = await question(agent, session, 1)
            assert f"\n| cat\n{expected}\n" in waiting.question
            await agent.answer(session, waiting, "no")
        with anyio.fail_after(60):
            await agent.wait(await agent.find(session.id))
        results = outputs(list(await agent.journal(session)))
    assert results[0].startswith("not run") == (expected is not None)
