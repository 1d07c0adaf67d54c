"""The matches of a watch pattern are each reported once, also those that are new when the command ends."""

import json
import os
from pathlib import Path

import anyio
import pytest

from outrider.testing.scripted_model import ScriptedModel, call, says
from tests.support.task_notices import PATIENCE, Reported, command_runner, notices_in, reports_at_end, start, summary_of
from tests.support.tasking import TERMINAL, open_scripted, say_and_wait, wait_for_notices, with_task_id

pytestmark = [pytest.mark.anyio, pytest.mark.behaviour("B7")]

AT_THE_END = {
    "written at the end": ({"command": "echo E1; echo no; echo E2"}, Reported(("E1", "E2"), others=("succeeded",))),
    "without a newline": ({"command": "printf 'no\nE last'"}, Reported(("E last",), others=("succeeded",))),
    "a progress line": ({"command": "printf 'E1\rno\rE2\r'"}, Reported(("E1", "E2"), others=("succeeded",))),
    "notify never": ({"command": "echo no; printf E1; exit 3", "notify": "never"}, Reported(("E1",))),
    "notify failures": ({"command": "printf E1", "notify": "failures"}, Reported(("E1",))),
    "and a failure": (
        {"command": "printf E1; exit 3", "notify": "failures"},
        Reported(("E1",), others=("failed",)),
    ),
    "no match": ({"command": "echo none"}, Reported(others=("succeeded",))),
    "no output": ({"command": "true", "notify": "never"}, Reported()),
    "in the foreground": ({"command": "echo E1; printf E2", "background": False}, Reported()),
    "too many": (
        {"command": "seq 1 500 | sed s/^/E/ | tr '\n' '@' | tr @ '\n'"},
        Reported(tuple(f"E{n}" for n in range(1, 11)), others=("succeeded",), left_out=490),
    ),
}


async def test_what_is_new_when_a_command_ends_is_reported_before_its_end(tmp_path: Path) -> None:
    seen: dict[str, Reported] = {}
    async with open_scripted(tmp_path, command_runner(), sandbox_mode="off") as agent:

        async def run(name: str) -> None:
            arguments, _ = AT_THE_END[name]
            task = await start(agent, name, **arguments, watch="^E")
            seen[name] = await reports_at_end(agent, task)

        async with anyio.create_task_group() as group:
            for name in AT_THE_END:
                group.start_soon(run, name)
    assert seen == {name: expected for name, (_, expected) in AT_THE_END.items()}


async def test_matches_within_the_pause_between_two_notices_are_reported_with_the_end(tmp_path: Path) -> None:
    async with open_scripted(tmp_path, command_runner(), sandbox_mode="off") as agent:
        os.mkfifo(tmp_path / "work" / "fifo")
        task = await start(agent, command="echo E1; cat fifo; printf E3", watch="^E")
        session = await agent.find(task.session)
        (first,) = await wait_for_notices(agent, session)
        await anyio.to_thread.run_sync((tmp_path / "work" / "fifo").write_text, "E2\nno\n")
        _, second, end = await wait_for_notices(agent, session, 3)
    assert summary_of([first]) == Reported(("E1",))
    assert summary_of([second]) == Reported(("E2", "E3"))
    assert summary_of([end]) == Reported(others=("succeeded",))


@pytest.mark.parametrize("ending", ["by a person", "by its time limit", "with everything"])
async def test_the_last_matches_of_a_task_that_is_killed_are_reported_unless_everything_is_stopped(
    tmp_path: Path, ending: str
) -> None:
    settings = {"shell_ceiling": "1"} if ending == "by its time limit" else {}
    async with open_scripted(tmp_path, command_runner(), sandbox_mode="off", **settings) as agent:
        task = await start(agent, command="printf E1; sleep 300", watch="^E")
        with anyio.fail_after(PATIENCE):
            while agent.commands.size(task) == 0:
                await anyio.sleep(0.02)
        match ending:
            case "by a person":
                await agent.kill_task(task)
                expected = Reported(("E1",), others=("killed",))
            case "with everything":  # a notice would start another turn
                await agent.stop(await agent.find(task.session), tasks=True)
                expected = Reported()
            case _:
                expected = Reported(("E1",), others=("timed_out",))
        assert await reports_at_end(agent, task) == expected


@pytest.mark.parametrize("is_awaited", [True, False])
async def test_nothing_that_a_command_writes_while_it_is_stopped_starts_another_turn(
    tmp_path: Path, is_awaited: bool
) -> None:
    writes = "for i in 1 2 3 4 5 6 7 8; do echo E; sleep 0.2; done; exit"
    command = f"trap '{writes}' TERM; echo up; while :; do sleep 0.1; done"
    model = command_runner()
    async with open_scripted(tmp_path, model, sandbox_mode="off") as agent:
        session = await agent.session("s")
        arguments = {"command": command, "watch": "E", "background": not is_awaited, "timeout": 300}
        await agent.post(json.dumps(arguments), session=session, address=TERMINAL)
        with anyio.fail_after(PATIENCE):
            while not any([agent.commands.size(task) for task in await agent.tasks(session) if task.process]):
                await anyio.sleep(0.02)
            if not is_awaited:
                await agent.wait(await agent.find(session.id))
            await agent.stop(session, tasks=True)
            turns = len(model.prompts)
            (task,) = await agent.tasks(session)
            await agent.wait(await agent.find(session.id))
        assert (task.state, await notices_in(agent, session.id), len(model.prompts)) == ("killed", [], turns)


async def test_what_a_task_wrote_before_the_model_killed_it_is_reported_and_its_end_is_a_result(
    tmp_path: Path,
) -> None:
    model = ScriptedModel(
        says("", call("shell", command="printf E1; sleep 300", background=True, watch="^E")),
        with_task_id(lambda task: says("", call("tasks", action="wait", task=task, until="E1", limit=60))),
        with_task_id(lambda task: says("", call("tasks", action="kill", task=task))),
        *[says("ok")] * 3,
    )
    async with open_scripted(tmp_path, model, sandbox_mode="off") as agent:
        session = await say_and_wait(agent, "go")
        (task,) = await agent.tasks(session)
        notices = await notices_in(agent, session.id)
    assert (task.state, summary_of(notices)) == ("killed", Reported(("E1",)))


async def test_a_command_that_ended_while_no_process_watched_it_is_searched_to_its_end(tmp_path: Path) -> None:
    async with open_scripted(tmp_path, command_runner(), sandbox_mode="off") as agent:
        os.mkfifo(tmp_path / "work" / "fifo")
        task = await start(agent, command="echo E1; cat fifo; printf E4", watch="^E", notify="never")
        await wait_for_notices(agent, await agent.find(task.session))
    await anyio.to_thread.run_sync((tmp_path / "work" / "fifo").write_text, "E2\nno\nE3\n")
    async with open_scripted(tmp_path, command_runner(), sandbox_mode="off") as agent:
        assert await reports_at_end(agent, task) == Reported(("E1", "E2", "E3", "E4"))
    async with open_scripted(tmp_path, command_runner(), sandbox_mode="off") as agent:
        assert await reports_at_end(agent, task) == Reported(("E1", "E2", "E3", "E4"))


async def test_a_command_that_leaves_the_foreground_is_watched_from_its_beginning(tmp_path: Path) -> None:
    async with open_scripted(tmp_path, command_runner(), sandbox_mode="off") as agent:
        os.mkfifo(tmp_path / "work" / "fifo")
        task = await start(agent, command="echo E1; cat fifo", background=False, timeout=1, watch="^E")
        (first,) = await wait_for_notices(agent, await agent.find(task.session))
        await anyio.to_thread.run_sync((tmp_path / "work" / "fifo").write_text, "E2")
        assert await reports_at_end(agent, task) == Reported(("E1", "E2"), others=("succeeded",))
    assert summary_of([first]) == Reported(("E1",))


@pytest.mark.promise("L7")
async def test_neither_a_huge_rest_nor_a_slow_pattern_holds_up_an_end_for_long_and_what_is_not_searched_is_said(
    tmp_path: Path,
) -> None:
    commands = {
        "huge": ("printf 'E1\n'; head -c 100000000 /dev/zero | tr '\\0' x | fold -w 1000; printf '\nE2'", "^E"),
        "slow": (f"printf '{'a' * 60}!'", "(a+)+$"),
    }
    ends: dict[str, Reported] = {}
    lines: dict[str, str] = {}
    async with open_scripted(tmp_path, command_runner(), sandbox_mode="off", shell_output="200000000") as agent:

        async def run(name: str) -> None:
            command, pattern = commands[name]
            task = await start(agent, name, command=command, watch=pattern)
            ends[name] = await reports_at_end(agent, task)
            *_, notice, _ = await notices_in(agent, task.session)
            lines[name] = notice.text.split("\n")[-1].replace(task.id, "ID")

        async with anyio.create_task_group() as group:
            for name in commands:
                group.start_soon(run, name)
    assert ends == {
        "huge": Reported(("E1",), others=("unwatched", "succeeded")),
        "slow": Reported(others=("unwatched", "succeeded")),
    }
    prefix = "[… the output after this was not searched: tasks(action=read, task=ID, start="
    assert lines["slow"] == f"{prefix}0)]"
    assert 0 <= int(lines["huge"].removeprefix(prefix).removesuffix(")]")) < 100_000_000
