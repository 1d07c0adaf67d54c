"""Known secrets in the output of commands: replaced wherever it is served, and the file is for its owner alone."""

import json
import os
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

import outrider
from outrider.app.agent import Agent
from outrider.channels.http import sessions, tasks
from outrider.config.load import load
from outrider.config.redact import Redactor
from outrider.core.events import Input
from outrider.testing.scripted_model import ReplySource, ScriptedModel, call, says
from outrider.testing.scripted_server.script import Script, ScriptRule
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import Person
from tests.support.http import client, serving
from tests.support.tasking import results, say_and_wait, wait_for_notices, with_task_id

pytestmark = [pytest.mark.promise("S11"), pytest.mark.needs("sandbox")]
SECRET = "sk-proj-Zm9vYmFyYmF6cXV4MTIzNDU2"
MASKED = "%secret" + "-" * (len(SECRET) - 8) + "%"


@asynccontextmanager
async def home(folder: Path, *replies: ReplySource) -> AsyncGenerator[Agent]:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (work / "key").write_text(SECRET)
    config = load(folder / "home", {"OPENAI_API_KEY": SECRET}, {})
    async with outrider.open(config=config, model=ScriptedModel(*replies), workspace=work) as agent:
        yield agent


@pytest.mark.anyio
async def test_results_reads_notices_and_the_api_have_no_secret(tmp_path: Path) -> None:
    command = "printf 'begin '; cat key; echo ' end'"
    replies = (
        says("", call("shell", command=command)),
        with_task_id(lambda task: says("", call("tasks", action="read", task=task, start=10, most=20))),
        says("", call("shell", command=f"{command}; cat fifo; cat key; echo", background=True, watch="end|sk-proj")),
        says("fine"),
        says("seen"),
        says("seen again"),
    )
    async with home(tmp_path, *replies) as agent, serving(agent, (*tasks.ENDPOINTS, *sessions.ENDPOINTS)) as url:
        os.mkfifo(tmp_path / "work" / "fifo")
        session = await say_and_wait(agent, "go")
        shown, part, started = await results(agent, session)
        await wait_for_notices(agent, session, 1)
        (tmp_path / "work" / "fifo").write_text("")
        notices = await wait_for_notices(agent, session, 2)
        events = [event.body.text for event in await agent.journal(session) if isinstance(event.body, Input)]
        async with client(url) as owner:
            path = f"/v1/tasks/{started['task']}/output"
            whole = (await owner.get(path)).content
            halves = [
                (await owner.get(path, params={"start": start, "most": 20})).content for start in range(0, 80, 20)
            ]
            entries = (await owner.get(f"/v1/sessions/{session.id}/entries")).text
        raw = Path(started["output_file"])
        mode, folder_mode = (stat.S_IMODE(path.stat().st_mode) for path in (raw, raw.parent))
        content = raw.read_text()
    assert (shown["output"], part["output"]) == (f"begin {MASKED} end\n", f"begin {MASKED} end\n"[10:30])
    assert whole.decode() == f"begin {MASKED} end\n{MASKED}\n"
    assert b"".join(halves) == whole[:80]
    assert not [text for text in (*events, *(notice.text for notice in notices), entries) if "Zm9vYmFy" in text]
    assert content == f"begin {SECRET} end\n{SECRET}\n"
    assert (mode, folder_mode) == (0o600, 0o700)


@pytest.mark.anyio
async def test_a_secret_that_is_still_being_written_is_not_shown_by_halves(tmp_path: Path) -> None:
    command = f"printf 'a {SECRET[:20]}'; cat fifo >rest; printf '{SECRET[20:]} b'"
    reply = says("", call("shell", command=command, background=True))
    async with home(tmp_path, reply, says("fine"), says("seen")) as agent:
        fifo = tmp_path / "work" / "fifo"
        os.mkfifo(fifo)
        session = await say_and_wait(agent, "go")
        (task,) = await agent.tasks(session)
        with anyio.fail_after(60):
            while agent.commands.size(task) < 22:
                await anyio.sleep(0.01)
        first = agent.commands.read(task, 0, 100)
        fifo.write_text("go")
        await wait_for_notices(agent, session)
        rest = agent.commands.read(await agent.find_task(task.id), len(first), 100)
    assert (first, (first + rest).decode()) == (b"a ", f"a {MASKED} b")


@pytest.mark.anyio
async def test_an_end_that_only_looks_like_a_secret_is_shown_once_the_command_has_ended(tmp_path: Path) -> None:
    reply = says("", call("shell", command=f"printf 'a {SECRET[:20]}'"))
    async with home(tmp_path, reply, says("fine")) as agent:
        (shown,) = await results(agent, await say_and_wait(agent, "go"))
    assert shown["output"] == f"a {SECRET[:20]}"


def test_the_commands_of_the_terminal_show_no_secret(tmp_path: Path) -> None:
    person = Person(tmp_path)
    (person.project / "key").write_text("k-1234567890")
    command = "cat key; echo; cat key | base64; echo done"
    rule = ScriptRule(r"^go\b", ((says("", call("shell", command=command, background=True)),), (says("started"),)))
    with ScriptedServer(Script(rules=(rule,))) as server:
        person.uses(server.url)
        lines = person.types("run", "--json", "-s", "s", "go").lines
        (result,) = [json.loads(line["text"]) for line in lines if line["type"] == "result"]
        waited = person.types("tasks", "wait", result["task"])
        shown, as_json = (person.types("tasks", "show", result["task"], *more) for more in ((), ("--json",)))
        tail = person.types("tasks", "tail", result["task"])
    masked = "%secret----%\n%secret--------%\ndone\n"
    assert (tail.out, json.loads(as_json.out)["output"]) == (masked, masked)
    assert not [ran for ran in (waited, shown, as_json, tail) if "1234567890" in ran.out + ran.err]
    assert Path(result["output_file"]).read_text().startswith("k-1234567890\n")


def test_a_mask_is_as_long_as_what_it_hides_in_every_form() -> None:
    other = 'quo"te/pass+word'
    redactor = Redactor([SECRET, other])
    content = f"{SECRET} {json.dumps(other)} ork_abcdefg2_{'0f' * 32} and more\n".encode()
    masked = redactor.mask(content)
    assert len(masked) == len(content)
    assert masked.count(b"%secret-") == 3
    assert redactor.mask(b"nothing here") == b"nothing here"
    endings = {SECRET[:4]: 4, SECRET[:3]: 0, SECRET[:-1]: len(SECRET) - 1, "ork_abc": 7, "x": 0}
    assert {text: redactor.unfinished_bytes(f"so {text}".encode()) for text in endings} == endings
