"""Random kills while messages arrive: `./dev soak --kills 50`. Nothing may be lost or repeated.

A child process opens the home, resumes what is unfinished and posts messages by key; this process kills it at random
moments and starts it again. Each message makes the model pay one bill. In the end every acknowledged message has its
reply, and no bill was paid twice. The payments are counted in a file, outside of Outrider.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import anyio
import msgspec

import outrider
from outrider.core.events import Reply
from outrider.core.ports import Emit
from outrider.core.prompt import UNKNOWN, Prompt, ToolMessage, UserMessage
from outrider.core.types import Call, ModelTraits, Replay, call_id
from outrider.tools.define import ToolContext

SESSIONS = 5


class PayingModel:
    """Pays every bill in its prompt, one call per step, then says how many."""

    traits = ModelTraits("paying", "paying")

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        bills = [m.text.removeprefix("pay ") for m in prompt.messages if isinstance(m, UserMessage)]
        asked = sum(isinstance(m, ToolMessage) for m in prompt.messages)
        await anyio.sleep(0.002)
        if asked < len(bills):
            return Reply("", prompt.saw, (Call(call_id(prompt.saw, 0), "pay", {"bill": bills[asked]}),))
        return Reply(f"paid {len(bills)} bills", prompt.saw)


@outrider.tool(replay=Replay.NEVER)
async def pay(context: ToolContext, bill: str) -> str:
    """Pay a bill."""
    with Path(context.workspace.root, "paid").open("a") as file:
        file.write(bill + "\n")
    return f"paid {bill}"


async def run_child(folder: Path, count: int) -> None:
    """The child process: resume turns, post every message, print each acknowledgement, wait for the end."""
    async with outrider.open(folder / "home", model=PayingModel(), tools=[pay], workspace=folder / "work") as agent:
        await agent.resume_all()
        for n in range(count):
            session = await agent.session(f"s{n % SESSIONS}")
            await agent.post(f"pay b{n}", session=session, key=f"b{n}")
            sys.stdout.write(f"b{n}\n")
            sys.stdout.flush()
            if n % 50 == 49:
                for each in await agent.sessions():
                    await agent.wait(each)
        for session in await agent.sessions():
            await agent.wait(session)


class Verdict(msgspec.Struct):
    """What was counted outside of Outrider."""

    kills: int
    acknowledged: int
    lost: int
    paid_twice: int
    unpaid_unreported: int
    """Bills that were not paid, and whose result does not say that the outcome is unknown."""
    unanswered: int


async def judge(folder: Path, kills: int, acknowledged: set[str]) -> Verdict:
    """Compare the payments and the journals with what was acknowledged."""
    paid = Counter((folder / "work" / "paid").read_text().split())
    inputs: set[str] = set()
    unreported = unanswered = 0
    async with outrider.open(folder / "home", model=PayingModel(), tools=[pay], workspace=folder / "work") as agent:
        for session in await agent.sessions():
            unanswered += session.has_work
            journal = [msgspec.to_builtins(entry.body) for entry in await agent.journal(session)]
            bills = {body["text"].removeprefix("pay ") for body in journal if body["type"] == "input"}
            unknown = sum(body["type"] == "result" and body["text"] == UNKNOWN for body in journal)
            inputs |= bills
            unreported += max(0, len([bill for bill in bills if not paid[bill]]) - unknown)
    repeated = sum(n > 1 for n in paid.values())
    return Verdict(kills, len(acknowledged), len(acknowledged - inputs), repeated, unreported, unanswered)


def soak(folder: Path, kills: int, messages: int, seed: int) -> Verdict:
    """Kill this many child processes at random moments, let the last one finish, and count."""
    chance = random.Random(seed)
    (folder / "work").mkdir()
    acknowledged: set[str] = set()
    command = [sys.executable, "-m", "bench.soak", "--child", str(folder), "--messages", str(messages)]
    for n in range(kills + 1):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            if n < kills:
                time.sleep(0.3 + chance.random() * 0.7)
                child.send_signal(signal.SIGKILL)
            out, _ = child.communicate(timeout=300)
            acknowledged |= {line for line in out.split("\n")[:-1] if line}
        sys.stderr.write(f"\rprocess {n + 1} of {kills + 1}, {len(acknowledged)} messages acknowledged ")
    sys.stderr.write("\n")
    return anyio.run(judge, folder, kills, acknowledged)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        anyio.run(run_child, options.child, options.messages)
        return
    with tempfile.TemporaryDirectory() as name:
        verdict = soak(Path(name), options.kills, options.messages, options.seed)
    sys.stdout.write(msgspec.json.encode(verdict).decode() + "\n")
    bad = verdict.lost + verdict.paid_twice + verdict.unpaid_unreported + verdict.unanswered
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
