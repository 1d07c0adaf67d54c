"""Tasks and questions over HTTP: read, write, answer and kill."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

import outrider
from outrider.app.agent import Agent
from outrider.channels.http import questions, sessions, tasks
from outrider.config.load import load
from outrider.core.prompt import Prompt, ToolMessage, UserMessage
from outrider.testing.scripted_model import ReplySource, ScriptedModel, ScriptedReply, call, says
from tests.support.http import client, serving

pytestmark = pytest.mark.anyio

ENDPOINTS = (*sessions.ENDPOINTS, *questions.ENDPOINTS, *tasks.ENDPOINTS)
ALLOWED = '[[rules]]\nverdict = "allow"\ntool = "shell"\nneeds = ["host"]\n'
ASKED = '[[rules]]\nverdict = "ask"\ntool = "shell"\n'


@asynccontextmanager
async def serving_home(
    folder: Path, *lines: ReplySource, rules: str = ALLOWED
) -> AsyncGenerator[tuple[Agent, str, ScriptedModel]]:
    """A home in which commands run without an approval, even without a sandbox, unless `rules` say otherwise."""
    home, model = folder / "home", ScriptedModel(*lines)
    await anyio.Path(home).mkdir(mode=0o700)
    await anyio.Path(home / "config.toml").write_text(rules)
    async with outrider.open(config=load(home, {}), model=model) as agent, serving(agent, ENDPOINTS) as url:
        yield agent, url, model


async def begin(owner: httpx2.AsyncClient) -> str:
    session = (await owner.post("/v1/sessions", json={"name": "work"})).json()["id"]
    await owner.post(f"/v1/sessions/{session}/inputs", json={"text": "go"})
    return f"/v1/sessions/{session}"


async def rest(owner: httpx2.AsyncClient, path: str) -> list[dict[str, Any]]:
    """The session's entries, once it is idle."""
    with anyio.fail_after(60):
        await owner.get(f"{path}/events", params={"until": "idle"}, timeout=60)
    return (await owner.get(f"{path}/entries")).json()["entries"]


async def only_task(owner: httpx2.AsyncClient) -> dict[str, Any]:
    (task,) = (await owner.get("/v1/tasks")).json()["tasks"]
    return task


async def first_question(owner: httpx2.AsyncClient, path: str) -> dict[str, Any]:
    """The only open question, once there is one."""
    with anyio.fail_after(60):
        async with owner.stream("GET", f"{path}/events", timeout=60) as stream:
            async for line in stream.aiter_lines():
                if line.startswith('data: {"type":"asked"'):
                    break
    (question,) = (await owner.get("/v1/questions")).json()["questions"]
    return question


async def ended(agent: Agent, task: str) -> None:
    with anyio.fail_after(60):
        await agent.wait_task(await agent.find_task(task))


async def test_a_commands_output_is_read_in_parts_byte_for_byte(tmp_path: Path) -> None:
    command = r"printf 'one\ntwo\377\nthree\n'"
    async with (
        serving_home(tmp_path, says("", call("shell", command=command)), says("ok")) as (_, url, _),
        client(url) as owner,
    ):
        await rest(owner, await begin(owner))
        task = await only_task(owner)
        task_view = (await owner.get(f"/v1/tasks/{task['id']}")).json()
        output = f"/v1/tasks/{task['id']}/output"
        whole = await owner.get(output)
        parts = [
            (await owner.get(output, params=params)).content for params in ({"start": 4, "most": 3}, {"start": -6})
        ]
        beyond = await owner.get(output, params={"start": 1_000})
        too_many = await owner.get(output, params={"most": 2**30})
    assert task_view == task
    assert (task["state"], task["exit_code"], task["command"]) == ("succeeded", 0, command)
    assert whole.content == b"one\ntwo\xff\nthree\n"
    assert whole.headers["content-type"] == "application/octet-stream"
    assert parts == [b"two", b"three\n"]
    assert (beyond.content, beyond.headers["x-output-size"]) == (b"", "15")
    assert too_many.status_code == 400


async def test_the_end_of_a_background_command_is_in_the_event_stream(tmp_path: Path) -> None:
    begun = says("", call("shell", command="cat", background=True, interactive=True))
    async with (
        serving_home(tmp_path, begun, says("I will tell you"), says("it is over")) as (agent, url, model),
        client(url) as owner,
    ):
        path = await begin(owner)
        (result,) = [entry for entry in await rest(owner, path) if entry["type"] == "result"]
        running = (await owner.get("/v1/tasks", params={"open": True, "session": "work"})).json()["tasks"]
        task = running[0]["id"]
        part = await owner.post(f"/v1/tasks/{task[:-1]}/kill")
        killed = await owner.post(f"/v1/tasks/{task}/kill")
        entries = await rest(owner, path)
        open_now = (await owner.get("/v1/tasks", params={"open": True})).json()
        again = await owner.post(f"/v1/tasks/{task}/kill")
        assert (part.status_code, part.json()["error"]["code"]) == (404, "not_found")
        assert [one.id for one in await agent.tasks()] == [task]
    assert json.loads(result["text"])["notify"] is True
    assert [(one["state"], one["address"]) for one in running] == [("running", f"sessions:{path.rpartition('/')[2]}")]
    assert (killed.status_code, killed.json()["state"]) == (200, "killed")
    assert [entry["text"] for entry in entries if entry["type"] == "reply"][-1] == "it is over"
    assert open_now == {"tasks": []}
    assert again.json() == killed.json() | {"is_told": again.json()["is_told"]}
    assert len(model.prompts) == 3


async def test_an_interactive_command_is_written_to_and_its_input_closed(tmp_path: Path) -> None:
    begun = says("", call("shell", command="cat", background=True, interactive=True))
    async with (
        serving_home(tmp_path, begun, says("waiting"), says("done")) as (agent, url, _),
        client(url) as owner,
    ):
        await rest(owner, await begin(owner))
        task = (await only_task(owner))["id"]
        wrote = [
            await owner.post(f"/v1/tasks/{task}/input", json={"text": "hé\n"}),
            await owner.post(f"/v1/tasks/{task}/input", json={"text": "bye\n", "close": True}),
        ]
        await ended(agent, task)
        output = await owner.get(f"/v1/tasks/{task}/output")
        closed = await owner.post(f"/v1/tasks/{task}/input", json={"text": "more"})
    assert [answer.status_code for answer in wrote] == [200, 200]
    assert output.text == "hé\nbye\n"
    assert (closed.status_code, closed.json()["error"]["code"]) == (400, "refused")


async def test_another_persons_tasks_do_not_exist(tmp_path: Path) -> None:
    async with (
        serving_home(tmp_path, says("", call("shell", command="echo mine")), says("ok")) as (_, url, _),
        client(url) as owner,
        client(url, "other", "chat") as other_person,
    ):
        await rest(owner, await begin(owner))
        task = (await only_task(owner))["id"]
        tried = [
            await other_person.get(f"/v1/tasks/{task}"),
            await other_person.get(f"/v1/tasks/{task}/output"),
            await other_person.post(f"/v1/tasks/{task}/input", json={"text": "x"}),
            await other_person.post(f"/v1/tasks/{task}/kill"),
        ]
        lists = [(await other_person.get(path)).json() for path in ("/v1/tasks", "/v1/questions")]
    assert [answer.status_code for answer in tried] == [404] * 4
    assert lists == [{"tasks": []}, {"questions": []}]


async def test_a_task_that_is_a_session_is_read_as_one(tmp_path: Path) -> None:
    def first(prompt: Prompt) -> ScriptedReply:
        is_child = UserMessage("look around") in prompt.messages
        return says("all quiet") if is_child else says("", call("delegate", work="look around"))

    async with serving_home(tmp_path, first, says("thanks")) as (_, url, _), client(url) as owner:
        await rest(owner, await begin(owner))
        task = await only_task(owner)
        output = await owner.get(f"/v1/tasks/{task['id']}/output")
        child = await owner.get(f"/v1/sessions/{task['child']}/entries")
    assert (output.status_code, output.json()["error"]["code"]) == (409, "no_command")
    assert [entry["text"] for entry in child.json()["entries"] if "text" in entry] == ["look around", "all quiet"]


@pytest.mark.needs("sandbox")
async def test_a_question_is_listed_and_answered_once_and_its_turn_continues(tmp_path: Path) -> None:
    request = says("", call("shell", command="echo allowed", needs=["network"], why="to see"))
    async with (
        serving_home(tmp_path, request, says("thank you"), rules=ASKED) as (_, url, model),
        client(url) as owner,
        client(url, "other", "chat,approve") as other_person,
    ):
        path = await begin(owner)
        question = await first_question(owner, path)
        path_of_answer = f"{path}/questions/{question['id']}"
        answers = [
            await other_person.post(path_of_answer, json={"answer": "once"}),
            await owner.post(path_of_answer, json={"answer": "perhaps"}),
            await owner.post(f"{path}/questions/{question['short_id']}", json={"answer": "once"}),
            await owner.post(path_of_answer, json={"answer": "no"}),
        ]
        entries = await rest(owner, path)
        left = (await owner.get("/v1/questions")).json()
    assert (question["session"], question["name"], question["needs"]) == (path.rpartition("/")[2], "work", ["network"])
    assert question["choices"] == ["once", "session", "workspace", "no"]
    assert [answer.status_code for answer in answers] == [404, 400, 200, 404]
    assert answers[2].json() == {"id": question["id"], "answer": "once"}
    assert left == {"questions": []}
    assert entries[-1]["outcome"] == "done"
    results = [message for message in model.prompts[-1].messages if isinstance(message, ToolMessage)]
    assert "allowed" in results[0].results[0].text
