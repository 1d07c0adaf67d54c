"""`outrider tasks`, with real commands that outlive the process that started them, also while another owns the home."""

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

import outrider
from outrider.config.load import load
from outrider.testing.scripted_model import ScriptedCall, ScriptedModel, call, says
from outrider.testing.scripted_server.script import Script, ScriptRule, Stall, script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import Ran, ended, interrupt
from tests.support.in_process import InProcessPerson as Person


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def background(command: str, **others: object) -> ScriptedCall:
    return call("shell", command=command, background=True, **others)


def begin(person: Person, command: str, **others: object) -> str:
    """Start a command from a run in a pipe, which then ends; returns its task."""
    rule = ScriptRule(r"^go\b", ((says("", background(command, **others)),), (says("started"),)))
    with ScriptedServer(Script(rules=(rule,))) as server:
        person.uses(server.url)
        lines = person.types("run", "--json", "-s", "s", "go").lines
    (result,) = [json.loads(line["text"]) for line in lines if line["type"] == "result"]
    return result["task"]


def list_tasks(person: Person, *words: str) -> dict[str, dict[str, Any]]:
    return {task["id"]: task for task in json.loads(person.types("tasks", "list", "--json", *words).out)}


def has_reader(fifo: Path) -> bool:
    """Whether a process still has this pipe open to read it."""
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


@pytest.fixture
def fifo(person: Person) -> Path:
    """A pipe that a command in the project reads for as long as the test likes."""
    path = person.project / "fifo"
    os.mkfifo(path)
    return path


@pytest.mark.needs("sandbox")
@pytest.mark.behaviour("B3")
def test_a_command_started_in_a_pipe_promises_no_notice_and_can_be_waited_for(person: Person, fifo: Path) -> None:
    with ScriptedServer(script(says("", background("cat fifo", notify="always")), says("started"))) as server:
        person.uses(server.url)
        ran = person.types("run", "--json", "-s", "s", "build it and tell me")
    (result,) = [json.loads(line["text"]) for line in ran.lines if line["type"] == "result"]
    task = result["task"]
    assert (result["status"], result["notify"]) == ("background_started", False)
    assert "there will be no notice" in result["message"]
    assert "Poll it" in result["message"]
    assert ran.err == f"outrider: task {task} is still running: outrider tasks wait {task}\n"
    assert (ran.lines[-1]["text"], ran.lines[-1]["tasks"]) == ("started", [task])

    assert {name: list_tasks(person)[task][name] for name in ("state", "notify", "name", "command")} == {
        "state": "running",
        "notify": "never",
        "name": "s",
        "command": "cat fifo",
    }
    assert person.types("tasks", "wait", task, "--timeout", "0.1") == Ran(75, "", f"outrider: task {task} is running\n")
    waiting = person.begins("tasks", "wait", task)
    fifo.write_text("built\n")
    assert ended(waiting) == Ran(0, "built\n", f"outrider: task {task} succeeded, exit code 0\n")
    row = list_tasks(person)[task]
    assert (row["state"], row["exit_code"], row["is_told"]) == ("succeeded", 0, False)
    assert person.types("resume").out == "no unfinished turns\n"


@pytest.mark.needs("sandbox")
def test_waiting_for_a_task_that_failed_says_so(person: Person) -> None:
    task = begin(person, "echo oh no; exit 3")
    waited = Ran(1, "oh no\n", f"outrider: task {task} failed, exit code 3\n")
    assert person.types("tasks", "wait", task) == waited
    assert person.types("tasks", "wait", task[:6]) == waited
    line = person.types("tasks", "wait", task, "--json").lines[0]
    assert (line["id"], line["state"], line["exit_code"], line["output"]) == (task, "failed", 3, "oh no\n")


@pytest.mark.needs("sandbox")
def test_the_list_has_open_tasks_first_and_show_prints_all_details(person: Person, fifo: Path) -> None:
    first = begin(person, "cat fifo", description="the long one")
    second = begin(person, "echo done")
    person.types("tasks", "wait", second)
    head, one, two = person.types("tasks", "list").out.splitlines()
    assert head.split() == ["TASK", "STATE", "TIME", "EXIT", "SESSION", "WHAT"]
    assert (one.split()[:2], one.endswith("the long one")) == ([first, "running"], True)
    assert (two.split()[:2], two.endswith("echo done")) == ([second, "succeeded"], True)
    page = person.types("tasks", "show", second).out
    for part in (f"task {second}", "state      succeeded", "exit code  0", "command    echo done", "| done"):
        assert part in page
    assert list(list_tasks(person, "--session", "s")) == [first, second]
    assert person.types("tasks", "kill", first).code == 0
    for words in (("show", "t-none"), ("list", "--session", "none"), ("kill", first, "t-none")):
        assert person.types("tasks", *words).code == 2


@pytest.mark.needs("sandbox")
def test_following_a_task_prints_its_output_leaves_the_home_free_and_ends_with_it(person: Person, fifo: Path) -> None:
    task = begin(person, "printf 'one\\ntwo\\n'; cat fifo; exit 4")
    following = person.begins("tasks", "tail", "-f", "-n", "1", task)
    assert following.stdout is not None
    assert following.stdout.readline() == b"two\n"
    descriptor = os.open(fifo, os.O_WRONLY)
    os.write(descriptor, b"thr\xc3")
    assert person.types("run", "hello", environ={"OUTRIDER_MODEL": "practice"}).code == 0  # The home is free.
    os.write(descriptor, b"\xa9e\n")
    assert following.stdout.readline().decode() == "thrée\n"
    os.close(descriptor)
    ran = ended(following)
    assert (ran.code, ran.err) == (0, f"outrider: task {task} failed, exit code 4\n")
    assert person.types("tasks", "tail", "-n", "2", task) == Ran(0, "two\nthrée\n", "")


@pytest.mark.needs("sandbox")
@pytest.mark.command("tasks")
def test_a_task_is_killed_with_all_its_processes_and_that_is_recorded(person: Person, fifo: Path) -> None:
    task = begin(person, "setsid cat fifo & cat fifo")
    ran = person.types("tasks", "kill", task)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"task {task} was killed")
    assert not has_reader(fifo)
    row = list_tasks(person)[task]
    assert (row["state"], row["why"]) == ("killed", "killed by the person")
    again = person.types("tasks", "kill", task)
    assert (again.code, again.out, "nothing to kill" in again.err) == (0, "", True)
    assert person.types("tasks", "wait", task).code == 1


@pytest.mark.needs("sandbox")
def test_a_task_that_reads_can_be_written_to_and_interrupted(person: Person) -> None:
    task = begin(person, "read name; echo hello $name; wc -c", interactive=True)
    assert person.types("tasks", "write", task, "Ada", "Byron") == Ran(0, f"task {task}: wrote 10 bytes\n", "")
    assert person.types("tasks", "write", task, "--no-newline", "--close", "123").code == 0
    assert person.types("tasks", "wait", task).out == "hello Ada Byron\n3\n"
    late = person.types("tasks", "write", task, "more")
    assert late == Ran(2, "", f"outrider: task {task} succeeded, exit code 0; an ended task takes no input\n")
    other = begin(person, "echo ready; cat", interactive=True)
    following = person.begins("tasks", "tail", "-f", other)
    assert following.stdout is not None
    assert following.stdout.readline() == b"ready\n"
    assert person.types("tasks", "write", other, "--ctrl-c").out == f"task {other}: interrupted it\n"
    assert ended(following).err == f"outrider: task {other} failed, exit code 130: ended by signal 2\n"


@pytest.mark.needs("sandbox")
def test_tasks_are_managed_while_another_process_owns_the_home(person: Person, fifo: Path) -> None:
    replies = says("", background("read word; echo $word; cat fifo", interactive=True), background("cat fifo"))
    with ScriptedServer(script(replies, Stall("headers"))) as server:
        person.uses(server.url)
        owner = person.begins("run", "-s", "s", "go")
        server.wait(2)
        assert person.types("sessions", "search", "go").out.startswith("s #1 ")
        tasks = list_tasks(person)
        assert {(task["state"], task["name"]) for task in tasks.values()} == {("running", "s")}
        (reads,) = [id for id, task in tasks.items() if task["is_interactive"]]
        (other,) = [id for id, task in tasks.items() if not task["is_interactive"]]

        following = person.begins("tasks", "tail", "-f", reads)
        assert person.types("tasks", "write", reads, "word").code == 0
        assert following.stdout is not None
        assert following.stdout.readline() == b"word\n"
        assert person.types("tasks", "tail", reads).out == "word\n"
        assert "| word" in person.types("tasks", "show", reads).out
        assert person.types("tasks", "wait", other, "--timeout", "0.1").code == 75

        for task in (reads, other):
            ran = person.types("tasks", "kill", task)
            assert (ran.code, ran.out.startswith(f"task {task} was killed")) == (0, True), ran
        assert not has_reader(fifo)
        assert ended(following).err.startswith(f"outrider: task {reads} was killed")
        assert person.types("tasks", "wait", other).code == 1
        assert {task["state"] for task in list_tasks(person).values()} == {"killed"}
        interrupt(owner)
    assert {task["state"] for task in list_tasks(person).values()} == {"killed"}


@pytest.mark.needs("sandbox")
@pytest.mark.anyio
async def test_listing_tasks_records_their_ends_and_starts_no_turn(person: Person, fifo: Path) -> None:
    model = ScriptedModel(says("", background("cat fifo")), says("I will tell you"))
    config = load(person.home, {})
    async with outrider.open(config=config, model=model, workspace=person.project) as agent:
        session = await agent.session("s")
        await agent.post("go", session=session, address="terminal:test")
        with anyio.fail_after(60):
            await agent.wait(await agent.find("s"))
    fifo.write_text("built\n")
    with ScriptedServer(script(says("unused"), says("unused"), says("it is built"))) as server:
        person.uses(server.url)
        (task,) = await anyio.to_thread.run_sync(lambda: list_tasks(person))
        waited = await anyio.to_thread.run_sync(lambda: person.types("tasks", "wait", task))
        assert (waited.code, waited.out) == (0, "built\n")
        assert len(server.requests) == 0
        transcript = await anyio.to_thread.run_sync(lambda: person.types("sessions", "show", "s").out)
        assert f"[Task {task} succeeded]" in transcript
        resumed = await anyio.to_thread.run_sync(lambda: person.types("resume"))
        assert (resumed.code, resumed.out) == (0, "[s]\nit is built\n\n")
        assert len(server.requests) == 1


@pytest.mark.needs("sandbox")
@pytest.mark.needs("terminal")
def test_a_terminal_shows_the_task_that_keeps_running(person: Person, fifo: Path) -> None:
    with ScriptedServer(script(says("", background("cat fifo")), says("started"))) as server:
        person.uses(server.url)
        code, screen = person.types_at_a_terminal("run", "go")
    (task,) = list_tasks(person)
    assert (code, f"in the background as task {task}" in screen) == (0, True), screen
    assert f"task {task} is still running: outrider tasks wait {task}" in screen
    assert f"as task {task}" in person.types("sessions", "show", next(iter(list_tasks(person).values()))["session"]).out
    assert person.types("tasks", "kill", task).code == 0
    doctor = person.types("doctor").out
    assert "the output of 1 task takes" in doctor
    assert "✓ sandbox" in doctor or "! sandbox" in doctor
