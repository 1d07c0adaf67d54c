"""A process with a watched command and one that asks two questions. The tests kill it and start it again.

`python -m tests.support.watch_child FOLDER` ends when both commands have ended and every notice was read. The model
writes down the notices that it is shown, by session.
"""

import json
import os
import sys
from pathlib import Path

import anyio
import msgspec
from msgspec.structs import replace

import outrider
from outrider.app.agent import Agent
from outrider.config.load import load
from outrider.core.approvals import HOST, Rule
from outrider.core.events import Reply
from outrider.core.ports import Emit
from outrider.core.prompt import AssistantMessage, Prompt, UserMessage
from outrider.core.types import Call, ModelTraits, call_id
from tests.support.task_notices import notices_in, summary_of

COMMANDS: dict[str, dict[str, object]] = {
    "watched": {
        "command": "echo E1; until [ -e go ]; do sleep 0.05; done; echo E2; printf E3",
        "watch": "^E",
        "notify": "failures",
    },
    "asking": {
        "command": "printf 'First? '; read one; printf '\nSecond? '; read two; echo; echo $one $two",
        "interactive": True,
    },
}
QUESTIONS = ("First? ", "Second? ")


class NoticeLogModel:
    """Runs the command of each session, and writes the notices in every prompt to a file."""

    traits = ModelTraits("log", "log")

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        messages = [message for message in prompt.messages if isinstance(message, UserMessage)]
        name = messages[0].text
        log = self._folder / f"{name}.new"
        log.write_bytes(msgspec.json.encode([message.text for message in messages if message.source == "task"]))
        os.replace(log, self._folder / f"{name}.seen")
        if any(isinstance(message, AssistantMessage) for message in prompt.messages):
            return Reply("noted", prompt.saw)
        return Reply("", prompt.saw, (Call(call_id(prompt.saw, 0), "shell", {**COMMANDS[name], "background": True}),))


async def act(folder: Path, agent: Agent) -> None:
    """Let the commands go on when they have been reported, each time once."""
    for task in await agent.tasks(open_only=True):
        reported = summary_of(await notices_in(agent, task.session))
        if task.spec.watch and reported.matches:
            (folder / "work" / "go").touch()
        if task.spec.keeps_stdin_open and task.state == "stalled":
            output = agent.commands.read(task, 0, 1_000).decode()
            number = sum(question in output for question in QUESTIONS)
            answered = folder / f"answered{number}"
            if len(reported.stalls) == number and not answered.exists():
                answered.touch()
                agent.commands.write(task, f"answer{number}\n".encode())
                await agent.refresh_task(task)


async def main(folder: Path) -> None:
    # The commands are harmless, and no sandbox is needed.
    config = replace(load(folder / "home", {}, {}), rules=(Rule("allow", "shell", needs=(HOST,)),))
    async with outrider.open(config=config, model=NoticeLogModel(folder), workspace=folder / "work") as agent:
        await agent.resume_all()
        for name in COMMANDS:
            await agent.post(name, session=await agent.session(name), key=name, address="terminal:test")
        with anyio.fail_after(60):
            while True:
                await act(folder, agent)
                tasks = await agent.tasks()
                has_ended = len(tasks) == len(COMMANDS) and not any(task.is_open for task in tasks)
                if has_ended and not await agent.unfinished():
                    break
                await anyio.sleep(0.02)
        outputs = {task.spec.command: agent.commands.read(task, 0, 1_000).decode() for task in tasks}
    sys.stdout.write(json.dumps(outputs))


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
