"""Rules hold for what Codex does by itself, and what they allow stays in its sandbox."""

from pathlib import Path

import anyio
import pytest

from outrider.testing.scripted_model import ScriptedCall, says
from outrider.testing.scripted_server.server import open_scripted_server
from tests.journey.test_codex_approvals import at_work, begin, ended, steps
from tests.support.codex import codex_home, open_codex, shell, summarize
from tests.support.questions import asked

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.behaviour("A15")]

DENY = '[[rules]]\nverdict = "deny"\ntool = "shell"\nargv = ["touch", "no"]\n'


def rule(folder: Path, text: str) -> None:
    """The home's rules, from its next opening on."""
    (folder / "home").mkdir(mode=0o700, exist_ok=True)
    (folder / "home" / "config.toml").write_text(text)
    (folder / "home" / "config.toml").chmod(0o600)


def adds(path: str) -> ScriptedCall:
    return ScriptedCall(
        "apply_patch", raw=f"*** Begin Patch\n*** Add File: {path}\n+hello\n*** End Patch\n", custom=True
    )


@pytest.mark.needs("bubblewrap")
async def test_a_denied_command_does_not_run_and_one_that_no_rule_matches_runs_without_a_question(
    tmp_path: Path,
) -> None:
    rule(tmp_path, DENY)
    lines = steps(says("", shell("touch no")), says("", shell("touch yes")), says("", adds("a.txt")), says("ok"))
    async with at_work(tmp_path, lines) as agent:
        journal = await ended(agent, await begin(agent))
    assert sorted(path.name for path in (tmp_path / "work").iterdir() if not path.name.startswith(".")) == [
        "a.txt",
        "yes",
    ]
    assert journal[4:] == [
        "reply shell",
        "result not run: a rule denies it (rule 1: deny shell: touch no …)",
        "reply shell",
        "begun",
        "result ",
        "reply patch",
        "begun",
        f"result add {tmp_path / 'work' / 'a.txt'}",
        "reply ok",
        "ended done",
    ]


async def test_a_rule_that_asks_applies_to_a_patch_in_the_workspace(tmp_path: Path) -> None:
    rule(tmp_path, '[[rules]]\nverdict = "ask"\ntool = "patch"\n')
    async with at_work(tmp_path, steps(says("", adds("a.txt")), says("ok"))) as agent:
        session = await begin(agent)
        await agent.answer(session, await asked(agent, session), "no")
        await ended(agent, session)
    assert not (tmp_path / "work" / "a.txt").exists()


@pytest.mark.needs("bubblewrap")
async def test_a_command_that_the_sandbox_stops_is_not_repeated_outside_of_it_without_a_rule(tmp_path: Path) -> None:
    rule(tmp_path, DENY)
    outside = tmp_path / "codex" / "outside"
    lines = steps(*(says("", shell(f"echo x > {outside}")) for _ in range(4)), says("ok"))
    async with open_scripted_server(lines) as server:
        codex_home(tmp_path, server.url, more="[sandbox_workspace_write]\nexclude_slash_tmp = true\n")
        async with open_codex(tmp_path, server.url) as agent:
            with anyio.fail_after(60):
                journal = await ended(agent, await begin(agent))
    assert not outside.exists()
    assert journal.count("asked") == 0
    assert ["Read-only file system" in line for line in journal if line.startswith("result")] == [True] * 4


@pytest.mark.needs("bubblewrap")
async def test_a_yes_to_commands_in_the_sandbox_does_not_allow_one_outside_of_it(tmp_path: Path) -> None:
    leaves = {"sandbox_permissions": "require_escalated"}
    lines = steps(says("", shell("touch in")), says("", shell("touch out", **leaves)), says("ok"))
    async with at_work(tmp_path, lines, approval="untrusted") as agent:
        session = await begin(agent)
        first = await asked(agent, session)
        await agent.answer(session, first, "session")
        second = await asked(agent, session, 2)
        await agent.answer(session, second, "no")
        await ended(agent, session)
    assert (first.needs, second.needs) == (("codex",), ("host",))
    assert first.question.startswith("Allow this command in Codex's sandbox,")
    assert ((tmp_path / "work" / "in").exists(), (tmp_path / "work" / "out").exists()) == (True, False)


@pytest.mark.needs("bubblewrap")
async def test_commands_of_codex_cannot_read_the_home_of_outrider(tmp_path: Path) -> None:
    secret = tmp_path / "home" / "api_key"
    secret.parent.mkdir(mode=0o700)
    secret.write_text("something that is nobody's business\n")
    async with at_work(tmp_path, steps(says("", shell(f"sleep 0.3; cat {secret}; echo end")), says("ok"))) as agent:
        journal = await ended(agent, await begin(agent))
    assert "nobody's business" not in "".join(journal)
    assert any(line.endswith("end\n") for line in journal), journal


@pytest.mark.needs("bubblewrap")
async def test_rules_apply_after_a_restart_and_no_other_question_is_asked(tmp_path: Path) -> None:
    rule(tmp_path, DENY)
    lines = steps(says("", shell("touch no")), says("", shell("touch yes")), says("ok"))
    async with open_scripted_server(lines) as server:
        with anyio.fail_after(60):
            async with open_codex(tmp_path, server.url) as agent:
                await agent.say("go", session="s")
            (tmp_path / "work" / "yes").unlink()
            async with open_codex(tmp_path, server.url) as agent:
                await agent.say("go", session="s")
                journal = summarize(await agent.journal(await agent.find("s")))
    assert ((tmp_path / "work" / "no").exists(), (tmp_path / "work" / "yes").exists()) == (False, True)
    assert "asked" not in journal


@pytest.mark.needs("bubblewrap")
async def test_a_workspace_inside_outriders_home_works_and_the_rest_of_the_home_is_hidden(tmp_path: Path) -> None:
    lines = steps(
        says("", shell("sleep 0.3; echo hello > mine; cat mine; cat ../../store.db; ls ..; echo end")), says("ok")
    )
    async with at_work(tmp_path, lines) as agent:
        own = agent.in_workspace(None)
        await own.say("go", session="s")
        session = await own.find("s")
        journal = summarize(await own.journal(session))
    (result,) = [line for line in journal if line.startswith("result")]
    assert (Path(session.workspace) / "mine").read_text() == "hello\n"
    assert ("hello\n" in result, "SQLite" in result, result.endswith("end\n")) == (True, False, True)
