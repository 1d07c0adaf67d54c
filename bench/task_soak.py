"""Random kills while commands and a child session run: `./dev soak tasks`. Each end is reported exactly once.

Each command writes a log of its own, and the model writes down what it was shown. The two are compared afterwards.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
from msgspec.structs import replace

import outrider
from outrider.config.load import load
from outrider.core.approvals import HOST, Rule
from outrider.core.events import Reply
from outrider.core.ports import Emit
from outrider.core.prompt import AssistantMessage, Prompt, ToolMessage, UserMessage
from outrider.core.types import Call, ModelTraits, call_id

TICKS = (2, 5, 8, 12, 16, 22, 30, 40, 50, 60)
"""How long each background command runs, in twentieths of a second."""
FOREGROUND, CHILD = len(TICKS), len(TICKS) + 1
"""The numbers of the command the turn waits for, and of the one that the child session runs."""
_OTHERS = 14
LINES = 3000
OUTPUT = "".join(f"{n}\n" for n in range(1, LINES + 1))
COUNT = len(TICKS) + 2
_WORK = "run your command"
_LONG = 40.0
End = tuple[int | None, str]
"""An exit code, and the output or the reason why there is none."""


def ticks(number: int) -> int:
    return TICKS[number] if number < len(TICKS) else _OTHERS


def command(number: int) -> str:
    """Logs its progress in a file of its own, then prints 3,000 lines and exits with its number."""
    loop = f"n=0; while [ $n -lt {ticks(number)} ]; do echo tick >>c{number}; sleep 0.05; n=$((n+1)); done"
    return f"echo start >>c{number}; {loop}; seq 1 {LINES}; echo end >>c{number}; exit {number}"


class Seen(msgspec.Struct, frozen=True):
    """What the model was shown in one prompt."""

    is_child: bool
    notices: list[str]
    results: list[str]


class LoggingModel:
    """Starts everything in its first reply, and writes every prompt to a file."""

    traits = ModelTraits("logging", "logging")

    def __init__(self, folder: Path) -> None:
        self._log = folder / "seen"

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        words = [m for m in prompt.messages if isinstance(m, UserMessage)]
        results = [r.text for m in prompt.messages if isinstance(m, ToolMessage) for r in m.results]
        is_child = words[0].text == _WORK
        seen = Seen(is_child, [m.text for m in words if m.source == "task"], results)
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(seen) + b"\n")
        finally:
            os.close(descriptor)
        if any(isinstance(m, AssistantMessage) for m in prompt.messages):
            return Reply("the child is done" if is_child else "noted", prompt.saw)
        calls = [("shell", _shell(CHILD))] if is_child else _everything()
        return Reply(
            "", prompt.saw, tuple(Call(call_id(prompt.saw, n), tool, args) for n, (tool, args) in enumerate(calls))
        )


def _shell(number: int, *, background: bool = False) -> dict[str, object]:
    return {"command": command(number), "background": background}


def _everything() -> list[tuple[str, dict[str, object]]]:
    background = [("shell", _shell(n, background=True)) for n in range(len(TICKS))]
    return [("delegate", {"work": _WORK, "background": True}), *background, ("shell", _shell(FOREGROUND))]


async def run_child(folder: Path) -> None:
    """The child process: resume turns, post the one message, say when all tasks have started, wait for every end."""
    config = load(folder / "home", {}, {})
    config = replace(config, rules=(Rule("allow", "shell", needs=(HOST,)),))  # harmless, and no sandbox is needed
    async with outrider.open(config=config, model=LoggingModel(folder), workspace=folder / "work") as agent:
        await agent.resume_all()
        parent = await agent.session("soak")
        await agent.post("begin", session=parent, key="begin", address="terminal:soak")
        is_reported = False
        with anyio.fail_after(_LONG):
            while True:
                tasks = await agent.tasks()
                if len(tasks) == COUNT + 1 and not is_reported:
                    is_reported = True
                    sys.stdout.write("begun\n")
                    sys.stdout.flush()
                if is_reported and not any(task.is_open for task in tasks) and not await agent.unfinished():
                    return
                await anyio.sleep(0.02)


def start(folder: Path, fail: str = "") -> "subprocess.Popen[str]":
    (folder / "work").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "bench.task_soak", "--child", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OUTRIDER_FAIL": fail},
    )


class Verdict(msgspec.Struct, frozen=True):
    """What was counted outside of Outrider."""

    kills: int = 0
    disturbed: int = 0
    """Commands that did not run exactly once and completely."""
    unreported: int = 0
    repeated: int = 0
    wrong: int = 0
    """Ends reported with a wrong exit code or wrong output."""
    unstarted: int = 0
    """Commands that never ran, and were reported as such."""

    @property
    def is_bad(self) -> bool:
        return bool(self.disturbed or self.unreported or self.repeated or self.wrong)

    def __add__(self, other: "Verdict") -> "Verdict":
        ours, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Verdict(*(a + b for a, b in zip(ours, theirs, strict=True)))


def judge(folder: Path, kills: int) -> Verdict:
    """Compare the commands' own logs with what the model was shown."""
    lines = [msgspec.json.decode(line, type=Seen) for line in (folder / "seen").read_bytes().splitlines()]
    parent = [seen for seen in lines if not seen.is_child][-1]
    child = [seen for seen in lines if seen.is_child][-1]
    reported = _ends_in(parent.notices)
    reported[FOREGROUND] += _ends_of(parent.results)
    reported[CHILD] += _ends_of(child.results)
    verdict = Verdict(kills)
    for number in range(COUNT):
        verdict += _judge_one(folder, number, reported[number])
    from_child = [text for text in parent.notices if f"command: {_WORK}" in text and "| the child is done" in text]
    return verdict + Verdict(unreported=not from_child, repeated=len(from_child) > 1)


def _judge_one(folder: Path, number: int, reported: Sequence[End]) -> Verdict:
    log = folder / "work" / f"c{number}"
    acts = Counter(log.read_text().split()) if log.exists() else Counter[str]()
    did_run = acts == {"start": 1, "tick": ticks(number), "end": 1}
    said_no = [text for _, text in reported if "did not run" in text]
    is_unstarted = not acts and bool(said_no)
    right = [text for code, text in reported if code == number and text == OUTPUT]
    return Verdict(
        disturbed=not did_run and not is_unstarted,
        unreported=not reported,
        repeated=len(reported) > 1,
        wrong=bool(reported) and not right and not is_unstarted,
        unstarted=is_unstarted,
    )


def _ends_in(notices: Sequence[str]) -> dict[int, list[End]]:
    """For each command, every end that a notice reported: its exit code, and the whole output it refers to."""
    found: dict[int, list[End]] = {number: [] for number in range(COUNT)}
    for text in notices:
        if match := re.match(r"\[Task .*\]\ncommand: echo start >>c(\d+);", text):
            facts = dict(re.findall(r"^(exit code|output file|reason): (.*)$", text, re.MULTILINE))
            file, code = Path(facts.get("output file", "")), facts.get("exit code")
            output = file.read_text() if file.is_file() else ""
            found[int(match[1])].append((int(code) if code else None, output or facts.get("reason", text)))
    return found


def _ends_of(results: Sequence[str]) -> list[End]:
    """The ends of commands that were waited for."""
    decoded = [msgspec.json.decode(text, type=dict[str, Any]) for text in results if text.startswith("{")]
    done = [result for result in decoded if result["status"] == "done"]
    return [(result.get("exit_code"), result.get("output") or str(result.get("reason"))) for result in done]


def round_of(folder: Path, deaths: Sequence[str | float], pauses: Sequence[float] = ()) -> Verdict:
    """Kill each process at its fail point or after this many seconds, run the last one to the end, and count."""
    kills = 0
    for n, death in enumerate(deaths):
        with start(folder, death if isinstance(death, str) else "") as child:
            try:
                child.wait(death if isinstance(death, float) else _LONG)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
            kills += child.wait(_LONG) == -signal.SIGKILL
        time.sleep(pauses[n] if n < len(pauses) else 0)
    with start(folder) as last:
        if code := last.wait(_LONG):
            raise RuntimeError(f"the last process exited with {code}")
    return judge(folder, kills)


POINTS = (
    "call_intent_recorded:3",
    "result_not_recorded:5",
    "task_end_not_recorded",
    "task_end_not_recorded:4",
    "task_created:4",
    "task_started:6",
)


def soak(folder: Path, rounds: int, seed: int) -> Verdict:
    chance = random.Random(seed)
    total = Verdict()
    for n in range(rounds):
        here = folder / str(n)
        here.mkdir()
        deaths = [chance.choice(POINTS) if chance.random() < 0.3 else chance.uniform(0.4, 3.0) for _ in range(3)]
        verdict = round_of(here, deaths[: chance.randint(1, 3)], [chance.uniform(0, 1.5) for _ in range(3)])
        total += verdict
        sys.stderr.write(f"\rround {n + 1} of {rounds}, {total.kills} kills ")
        if verdict.is_bad:
            sys.stderr.write(f"{deaths} {verdict}\n")
    sys.stderr.write("\n")
    return total


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev soak tasks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        anyio.run(run_child, options.child)
        return
    with tempfile.TemporaryDirectory() as name:
        verdict = soak(Path(name), options.rounds, options.seed)
    sys.stdout.write(msgspec.json.encode(verdict).decode() + "\n")
    sys.exit(verdict.is_bad)


if __name__ == "__main__":
    main()
