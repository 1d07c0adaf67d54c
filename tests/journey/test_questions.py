"""Questions to a person: what leaves the sandbox is asked for, and what was approved is exactly what runs, once."""

import json
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

import outrider
from outrider.app.agent import Agent
from outrider.config.load import load
from outrider.core.events import Answered, Asked, Begun, Ended, Entry, Result
from outrider.core.store_port import Session
from outrider.testing.scripted_model import ScriptedModel, call, says
from tests.support import questions

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("S8"),
    pytest.mark.needs("sandbox"),
]

TERMINAL, PIPE = "terminal:test", "pipe:test"


@pytest.fixture
def port() -> Iterator[int]:
    """A listener outside the sandbox."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def reach(port: int) -> str:
    return f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached' 2>/dev/null || echo shut off"


@asynccontextmanager
async def open_asking(folder: Path, model: ScriptedModel, rules: str = "", **settings: str) -> AsyncGenerator[Agent]:
    work, home = folder / "work", folder / "home"
    work.mkdir(exist_ok=True)
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(rules)
    config = load(home, {}, {name.replace("_", ".", 1): value for name, value in settings.items()})
    async with outrider.open(config=config, model=model, workspace=work) as agent:
        yield agent


async def asked(agent: Agent, session: Session, count: int = 1) -> Asked:
    with anyio.fail_after(60):
        return await questions.asked(agent, session, count)


async def begin(agent: Agent, text: str = "go", address: str = TERMINAL) -> Session:
    session = await agent.session("s")
    await agent.post(text, session=session, address=address)
    return await agent.find(session.id)


async def rest(agent: Agent) -> list[Entry]:
    with anyio.fail_after(60):
        await agent.wait(await agent.session("s"))
    return list(await agent.journal(await agent.session("s")))


def outputs(journal: list[Entry]) -> list[str]:
    found = [entry.body for entry in journal if isinstance(entry.body, Result)]
    return [json.loads(r.text)["output"].strip() if not r.failed else "failed: " + r.text[:7] for r in found]


async def test_a_command_has_no_network_unless_a_person_allows_it_for_this_call(tmp_path: Path, port: int) -> None:
    needing = call("shell", command=reach(port), needs=["network"], why="to fetch a file")
    model = ScriptedModel(
        says("", call("shell", command=reach(port))), says("", needing), says("", needing), says("ok")
    )
    async with open_asking(tmp_path, model) as agent:
        session = await begin(agent)
        question = await asked(agent, session)
        assert await agent.answer(session, question, "once")
        again = await asked(agent, session, 2)
        assert await agent.answer(session, again, "no")
        journal = await rest(agent)
        assert await agent.permissions() == []
    assert outputs(journal) == ["shut off", "reached", "failed: not run"]
    assert question.question.splitlines() == [
        f"Allow this command with network access, in {tmp_path / 'work'}?",
        f"| {reach(port)}",
        "The model's reason:",
        "| to fetch a file",
        "A yes for the session or the workspace covers every later command there that needs the same. "
        "The network is every host, including services on this machine's loopback.",
    ]


@pytest.mark.parametrize(("answer", "elsewhere"), [("session", "asked"), ("workspace", "reached")])
async def test_a_yes_holds_as_far_as_it_was_given_and_can_be_taken_back(
    tmp_path: Path, port: int, answer: str, elsewhere: str
) -> None:
    needing = says("", call("shell", command=reach(port), needs=["network"]))
    model = ScriptedModel(needing, needing, says("ok"), needing, says("ok"), needing, says("ok"))
    async with open_asking(tmp_path, model) as agent:
        session = await begin(agent)
        await agent.answer(session, await asked(agent, session), answer)
        assert outputs(await rest(agent)) == ["reached", "reached"]
        other = await agent.session("other")
        await agent.post("go", session=other, address=TERMINAL)
        if elsewhere == "asked":
            assert await agent.answer(other, await asked(agent, other), "no")
            assert await agent.answer(other, await asked(agent, other, 2), "no")
        with anyio.fail_after(60):
            await agent.wait(await agent.find(other.id))
        (grant,) = await agent.permissions()
        assert (grant.scope, grant.need) == (answer, "network")
        assert await agent.revoke_permission(grant.id)
        await begin(agent, "once more")
        await agent.answer(session, await asked(agent, session, 2), "no")
        assert outputs(await rest(agent))[-1] == "failed: not run"


@pytest.mark.promise("S9")
async def test_a_question_nobody_can_answer_is_a_no_and_after_three_the_turn_ends(tmp_path: Path, port: int) -> None:
    lines = [says("", call("shell", command=f"{reach(port)} # {n}", needs=["network"])) for n in range(9)]
    async with open_asking(tmp_path, ScriptedModel(*lines)) as agent:
        await begin(agent, address=PIPE)
        journal = await rest(agent)
    assert [entry.body.answer for entry in journal if isinstance(entry.body, Answered)] == ["no"] * 3
    assert not any(isinstance(entry.body, Begun) for entry in journal)
    (ended,) = [entry.body for entry in journal if isinstance(entry.body, Ended)]
    assert ended.reason == "stopped: 3 questions in a row were not answered"


@pytest.mark.promise("L3")
async def test_a_question_survives_restarts_and_its_answer_runs_the_command_once(tmp_path: Path, port: int) -> None:
    command = f"{reach(port)}; echo once >> runs"
    model = ScriptedModel(says("", call("shell", command=command, needs=["network"])), says("done"))
    async with open_asking(tmp_path, model) as agent:
        session = await begin(agent)
        await asked(agent, session)
    for _ in range(5):
        async with open_asking(tmp_path, model) as agent:
            await agent.resume_all()
            assert len(await agent.questions(await agent.session("s"))) == 1
    async with open_asking(tmp_path, model) as agent:
        (waiting,) = await agent.questions(await agent.session("s"))
        assert await agent.answer(session, waiting, "once")
        assert not await agent.answer(session, waiting, "no")
        journal = await rest(agent)
    assert outputs(journal) == ["reached"]
    assert (tmp_path / "work" / "runs").read_text() == "once\n"


async def test_other_calls_of_the_reply_go_on_while_one_waits(tmp_path: Path, port: int) -> None:
    calls = (call("shell", command=reach(port), needs=["network"]), call("shell", command="echo meanwhile"))
    async with open_asking(tmp_path, ScriptedModel(says("", *calls), says("ok"))) as agent:
        session = await begin(agent)
        question = await asked(agent, session)
        with anyio.fail_after(60):
            async for event in agent.follow(session):
                if isinstance(event, Entry) and isinstance(event.body, Result):
                    break
        await agent.answer(session, question, "once")
        journal = await rest(agent)
    assert outputs(journal) == ["meanwhile", "reached"]


ALLOW = '[[rules]]\nverdict = "allow"\ntool = "shell"\nargv = ["bash", "reach.sh"]\nneeds = ["network"]\n'


@pytest.mark.parametrize(
    ("rules", "command", "expected"),
    [
        (ALLOW, "bash reach.sh", "reached"),
        (ALLOW, "bash reach.sh; true", "asked"),
        (ALLOW, "bash other.sh", "asked"),
        ('[[rules]]\nverdict = "deny"\ntool = "shell"\n', "bash reach.sh", "failed: not run"),
    ],
)
async def test_rules_decide_beforehand_and_shell_syntax_never_slips_through_one(
    tmp_path: Path, port: int, rules: str, command: str, expected: str
) -> None:
    model = ScriptedModel(says("", call("shell", command=command, needs=["network"])), says("ok"))
    async with open_asking(tmp_path, model, rules) as agent:
        (tmp_path / "work" / "reach.sh").write_text(reach(port) + "\n")
        session = await begin(agent)
        if expected == "asked":
            await agent.answer(session, await asked(agent, session), "no")
            expected = "failed: not run"
        assert outputs(await rest(agent)) == [expected]


@pytest.mark.parametrize("tool", ["write", "shell"])
@pytest.mark.parametrize("answer", ["once", "no"])
async def test_a_rule_speaks_of_calls_that_stay_in_the_sandbox_too(tmp_path: Path, tool: str, answer: str) -> None:
    made = tmp_path / "work" / "made"
    args = {"path": "made", "content": "x"} if tool == "write" else {"command": "echo x > made"}
    model = ScriptedModel(says("", call(tool, **args)), says("ok"))
    async with open_asking(tmp_path, model, f'[[rules]]\nverdict = "ask"\ntool = "{tool}"\n') as agent:
        session = await begin(agent)
        question = await asked(agent, session)
        assert (question.choices, question.needs, made.exists()) == (("once", "no"), (), False)
        await agent.answer(session, question, answer)
        await rest(agent)
    assert made.exists() == (answer == "once")


@pytest.mark.parametrize("rule", ['tool = "write"', 'tool = "shell"', 'argv = ["touch"]', ""])
async def test_what_a_rule_denies_is_not_run_wherever_it_would(tmp_path: Path, rule: str) -> None:
    calls = (call("write", path="made", content="x"), call("shell", command="touch ran"))
    async with open_asking(
        tmp_path, ScriptedModel(says("", *calls), says("ok")), f'[[rules]]\nverdict = "deny"\n{rule}\n'
    ) as agent:
        await begin(agent)
        journal = await rest(agent)
    denied = [entry.body.text for entry in journal if isinstance(entry.body, Result) and entry.body.failed]
    assert all(text.startswith("not run: a rule denies it (rule 1: deny ") for text in denied)
    left = {path.name for path in (tmp_path / "work").iterdir()}
    assert left == {"made", "ran"} - ({"made"} if "write" in rule or not rule else set[str]()) - (
        set[str]() if "write" in rule else {"ran"}
    )


async def test_a_question_has_a_time_limit_only_where_one_is_set(tmp_path: Path, port: int) -> None:
    model = ScriptedModel(says("", call("shell", command=reach(port), needs=["network"])), says("ok"))
    async with open_asking(tmp_path, model, asks_seconds="1") as agent:
        await begin(agent)
        journal = await rest(agent)
    assert outputs(journal) == ["failed: not run"]
    (reason,) = [entry.body.text for entry in journal if isinstance(entry.body, Result)]
    assert reason.startswith("not run: it needs approval, and nobody was there to give it.")


async def test_a_path_outside_the_workspace_is_asked_for_and_then_only_read(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("outside\n")
    look = f"(cat {tmp_path}/notes/a.txt; echo x >> {tmp_path}/notes/a.txt) 2>/dev/null; true"
    needing = call("shell", command=look, needs=[f"read:{tmp_path}/notes"])
    model = ScriptedModel(says("", call("shell", command=look)), says("", needing), says("ok"))
    async with open_asking(tmp_path, model) as agent:
        session = await begin(agent)
        await agent.answer(session, await asked(agent, session), "once")
        journal = await rest(agent)
    assert outputs(journal) == ["", "outside"]
    assert (tmp_path / "notes" / "a.txt").read_text() == "outside\n"


@pytest.mark.promise("S10")
async def test_outriders_own_files_cannot_even_be_asked_for(tmp_path: Path) -> None:
    home = tmp_path / "home"
    needing = call("shell", command=f"cat {home}/config.toml", needs=[f"read:{home}"])
    async with open_asking(tmp_path, ScriptedModel(says("", needing), says("ok"))) as agent:
        await begin(agent)
        journal = await rest(agent)
    (result,) = [entry.body for entry in journal if isinstance(entry.body, Result)]
    assert result.failed
    assert not any(isinstance(entry.body, Asked) for entry in journal)
