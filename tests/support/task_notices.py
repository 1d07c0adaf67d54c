"""Commands that a message describes, and what the notices about them say."""

import json
from collections.abc import Sequence

import anyio
from msgspec import Struct

from outrider.app.agent import Agent
from outrider.core.events import Input
from outrider.core.prompt import Prompt, UserMessage
from outrider.core.tasks import Task
from outrider.testing.scripted_model import ScriptedModel, ScriptedReply, call, says
from tests.support.tasking import TERMINAL, say_and_wait

PATIENCE = 60
"""Seconds after which a wait fails."""


def command_runner() -> ScriptedModel:
    """A model that runs the command in the first message of a session, and has nothing to say to notices."""
    return ScriptedModel(_run_command, *[says("ok")] * 60)


def _run_command(prompt: Prompt) -> ScriptedReply:
    (message,) = [each for each in prompt.messages if isinstance(each, UserMessage)]
    return says("", call("shell", **json.loads(message.text)))


async def start(agent: Agent, name: str = "s", address: str = TERMINAL, /, **arguments: object) -> Task:
    """The task of a command that the model runs in a session of this name; in the background unless told otherwise."""
    session = await say_and_wait(agent, json.dumps({"background": True, **arguments}), address, name)
    (task,) = await agent.tasks(session)
    return task


class Reported(Struct, frozen=True):
    """What the notices of a session say, in their order."""

    matches: tuple[str, ...] = ()
    stalls: tuple[str, ...] = ()
    """The prompts."""
    others: tuple[str, ...] = ()
    """The states of ended tasks, and `unwatched`."""
    left_out: int = 0


def summary_of(notices: Sequence[Input]) -> Reported:
    reports = [each.notice for each in notices if each.notice]
    assert len(reports) == len(notices)
    matches = [each.text for each in notices if each.notice and each.notice.event in ("matched", "unwatched")]
    return Reported(
        tuple(line[2:] for text in matches for line in text.split("\n") if line.startswith("| ")),
        tuple(report.output[-1] for report in reports if report.event == "stalled"),
        tuple(
            report.state if report.event == "ended" else "unwatched"
            for report in reports
            if report.event in ("ended", "unwatched")
        ),
        sum(report.left_out for report in reports),
    )


async def notices_in(agent: Agent, session: str) -> list[Input]:
    journal = await agent.journal(await agent.find(session))
    return [entry.body for entry in journal if isinstance(entry.body, Input) and entry.body.source == "task"]


async def reports_at_end(agent: Agent, task: Task) -> Reported:
    """What has been reported when the task has ended."""
    with anyio.fail_after(PATIENCE):
        await agent.wait_task(task)
    return summary_of(await notices_in(agent, task.session))


async def wait_for_state(agent: Agent, task: Task, state: str) -> Task:
    with anyio.fail_after(PATIENCE):
        while (task := await agent.find_task(task.id)).state != state:
            await anyio.sleep(0.05)
    return task
