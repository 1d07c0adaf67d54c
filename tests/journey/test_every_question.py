"""Every question that a runtime can ask, on the terminal, over the API and in the journal.

It shows what runs, or marks what is left out.
"""

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest

import outrider
from outrider.app.agent import Agent
from outrider.app.api import PendingQuestion
from outrider.channels.http.schemas import render_pending_question
from outrider.cli.chat.renderer import TerminalRenderer
from outrider.cli.chat.session_view import ChatSessionView
from outrider.cli.render import transcript_lines
from outrider.config.load import load
from outrider.core.events import Asked
from outrider.core.store_port import Session
from outrider.core.text import escape_invisible
from outrider.runtimes.codex.approvals import COMMAND, ELICITATION, PATCH, PERMISSIONS
from outrider.testing.scripted_model import ScriptedCall, ScriptedModel, call, says
from outrider.tools.define import tool
from tests.support.acp import World, do
from tests.support.questions import asked
from tests.support.scripted_codex import ScriptedCodex

pytestmark = [pytest.mark.anyio, pytest.mark.promise("S8"), pytest.mark.timeout(180)]
TERMINAL = "terminal:test"
NASTY = (
    "echo a\u202eb\u200bc\x1b[2Jd\u3164 | [1 of 2 characters (1 line) cut; sha256 0123456789abcdef]\n"
    "The model's reason:\n| trust me"
)
LONG = "".join(f"line {number} \u202e of many\n" for number in range(2_000)) + "the end"
TEXTS = {"nasty": NASTY, "long": LONG}
Home = AbstractAsyncContextManager[Agent]
Parts = Mapping[str, str]
"""What is asked, by label; the command has none."""


def ask_rule(name: str) -> str:
    return f'[[rules]]\nverdict = "ask"\ntool = "{name}"\n'


@asynccontextmanager
async def native(folder: Path, made: ScriptedCall, rules: str) -> AsyncGenerator[Agent]:
    @tool
    def deliver(note: str, to: str) -> str:
        """Deliver a note."""
        (folder / "work" / "delivered").write_bytes(f"{to}/{note}".encode())
        return "delivered"

    home, work = folder / "home", folder / "work"
    home.mkdir(mode=0o700)
    (work / "sub").mkdir(parents=True)
    (home / "config.toml").write_text(rules)
    model = ScriptedModel(says("", made), says("ok"))
    async with outrider.open(config=load(home, {}), model=model, tools=[deliver], workspace=work) as agent:
        yield agent


def shell_with_stdin(folder: Path, text: str) -> tuple[Home, str, Parts]:
    made = call("shell", command="cat > sub/out", stdin=text, workdir=".", why=text)
    parts = {"": "cat > sub/out", "In the folder": ".", "With this stdin": text, "The model's reason": text}
    return native(folder, made, ask_rule("shell")), "go", parts


def shell_command(folder: Path, text: str) -> tuple[Home, str, Parts]:
    script = f"cat > sub/out <<'EOF'\n{text}\nEOF"
    made = call("shell", command=script, needs=["network"], why=text)
    return native(folder, made, ""), "go", {"": script, "The model's reason": text}


def file_write(folder: Path, text: str) -> tuple[Home, str, Parts]:
    made = call("write", content=text, path="sub/out")
    return native(folder, made, ask_rule("write")), "go", {"path": "sub/out", "content": text}


def plugin_tool(folder: Path, text: str) -> tuple[Home, str, Parts]:
    made = call("deliver", note=text, to="sub")
    return native(folder, made, ask_rule("deliver")), "go", {"note": text, "to": "sub"}


def acp_command(folder: Path, text: str) -> tuple[Home, str, Parts]:
    raw = {"command": text, "cwd": "/etc", "description": text[:50] + "!"}
    request = {"toolCallId": "c1", "title": "Run", "kind": "execute", "rawInput": raw}
    parts = {"": text, "cwd": "/etc", "The model's reason": text[:50] + "!"}
    return World(folder).open_agent(), do(["ask", request], ["say", "done"]), parts


def acp_edit(folder: Path, text: str) -> tuple[Home, str, Parts]:
    diff = [{"type": "diff", "path": "a", "oldText": "", "newText": text}]
    raw = {"new_string": text, "file_path": "/etc/a"}
    request = {"toolCallId": "c1", "title": "Edit", "kind": "edit", "rawInput": raw, "content": diff}
    parts = {"file_path": "/etc/a", "What it does": "Edit", "new_string": text}
    return World(folder).open_agent(), do(["ask", request], ["say", "done"]), parts


def codex(folder: Path, method: str, item: dict[str, Any] | None, request: dict[str, Any]) -> Home:
    scripted = ScriptedCodex(folder)
    step: dict[str, Any] = {"ask": method, "requests": [request]}
    scripted.will([{**step, "item": item} if item else step, {"say": "done"}])
    return scripted.open_agent()


def codex_command(folder: Path, text: str) -> tuple[Home, str, Parts]:
    item: dict[str, Any] = {"type": "commandExecution", "command": "ls", "cwd": "/etc", "commandActions": []}
    request = {"command": text, "cwd": "/etc", "reason": text}
    return codex(folder, COMMAND, item, request), "go", {"": text, "In the folder": "/etc", "The model's reason": text}


def codex_patch(folder: Path, text: str) -> tuple[Home, str, Parts]:
    changes = [{"path": "/etc/a", "kind": {"type": "update", "move_path": "/etc/b"}, "diff": text}]
    shown = f"update /etc/a, then move it to /etc/b\n{text}"
    home = codex(folder, PATCH, {"type": "fileChange", "changes": changes}, {})
    return home, "go", {"All files": "/etc/a\n/etc/b", "What it does": shown}


def codex_permissions(folder: Path, text: str) -> tuple[Home, str, Parts]:
    request = {"permissions": {"network": {"enabled": True}}, "cwd": "/etc", "reason": text}
    shown = 'more permissions: {"network":{"enabled":true}}'
    home = codex(folder, PERMISSIONS, None, {**request, "itemId": "p1"})
    return home, "go", {"": shown, "In the folder": "/etc", "The model's reason": text}


def codex_elicitation(folder: Path, text: str) -> tuple[Home, str, Parts]:
    request = {"serverName": "mail", "message": text, "mode": "url", "url": "https://a.test/\u202e"}
    return codex(folder, ELICITATION, None, request), "go", {"": text, "url": "https://a.test/\u202e"}


CASES: list[Callable[[Path, str], tuple[Home, str, Parts]]] = [
    shell_with_stdin,
    shell_command,
    file_write,
    plugin_tool,
    acp_command,
    acp_edit,
    codex_command,
    codex_patch,
    codex_permissions,
    codex_elicitation,
]


def parts_of(text: str) -> dict[str, str]:
    """The quoted parts of a question, by label."""
    parts, label = dict[str, list[str]](), ""
    for line in text.split("\n")[1:]:
        if line.startswith("| "):
            parts.setdefault(label, []).append(line[2:])
        else:
            label = line.removesuffix(":")
    return {label: "\n".join(lines) for label, lines in parts.items()}


def marks(text: str) -> list[str]:
    return re.findall(r"^ *\[[\d,]+ of [\d,]+ characters \(.*\) cut; sha256\s+(\w{16})", text, re.M)


def on_terminal(agent_journal: list[Any]) -> str:
    """The question on a screen of 80 by 24, as the chat prints it, without colours."""
    view = ChatSessionView(agent_journal)
    printed = TerminalRenderer().render(view.question_items(), 80, 24)
    hint = [line for _, line in view.live_lines(80, 8)]
    assert len(printed.splitlines()) + len(hint) + 3 <= 24
    assert any("[n]o" in line for line in hint)
    return re.sub(r"\x1b\[[\d;]*m", "", printed)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("case", CASES)
async def test_a_question_shows_what_runs_or_marks_the_cut_on_every_surface(
    tmp_path: Path, case: Callable[[Path, str], tuple[Home, str, Parts]], text: str
) -> None:
    opened, words, parts = case(tmp_path, text)
    async with opened as agent:
        session = await agent.session("s")
        await agent.post(words, session=session, address=TERMINAL)
        with anyio.fail_after(60):
            question = await asked(agent, session)
        session = await agent.find(session.id)
        journal = list(await agent.journal(session))
        surfaces = _surfaces(session, question, journal)
        await agent.answer(session, question, "once")
        with anyio.fail_after(60):
            await agent.wait(await agent.find(session.id))

    expected = {label: escape_invisible(part) for label, part in parts.items()}
    shown = parts_of(surfaces["whole"])
    assert {label: shown[label] for label in expected} == expected
    for name, surface in surfaces.items():
        assert not re.search("[\u202e\u200b\x1b\u3164]", surface), name
        assert "shown as \\u" in re.sub(r"\s+", " ", surface) or "\u202e" not in "".join(parts.values())
    for name in ("api", "journal", "terminal"):
        digests = marks(surfaces[name])
        long_parts = [part for part in parts.values() if len(part) > 10_000]
        assert {sha256(part.encode()).hexdigest()[:16] for part in long_parts} <= set(digests), name
        first_rows = surfaces[name].split("\n")
        assert any("Allow this" in row for row in first_rows[:2]), name
    _check_effect(tmp_path / "work", text)


def _surfaces(session: Session, question: Asked, journal: list[Any]) -> dict[str, str]:
    view = render_pending_question(PendingQuestion(session, question), can_answer=True)
    assert view.digest == question.digest
    lines = "\n".join(transcript_lines(session, journal))
    recorded = lines.partition("asked:\n")[2]
    return {"whole": view.whole, "api": view.question, "journal": recorded, "terminal": on_terminal(journal)}


def _check_effect(work: Path, text: str) -> None:
    """What a native tool did is what was shown."""
    for name in ("sub/out", "delivered"):
        if (work / name).exists():
            done = (work / name).read_bytes().decode().removeprefix("sub/")
            assert done in (text, f"{text}\n")
