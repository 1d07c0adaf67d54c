"""The choice of a runtime: `outrider runtime`, `--runtime` and `/runtime`."""

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import Stall, script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.tmux import Terminal
from tests.support.acp import World
from tests.support.codex import codex_home, codex_settings, texts
from tests.support.in_process import InProcessPerson as Person
from tests.support.parrot import install_parrot

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


@pytest.fixture
def with_parrot(person: Person, tmp_path: Path) -> Person:
    """A person who has installed a third-party runtime."""
    person.environ["PYTHONPATH"] = install_parrot(tmp_path / "installed")
    return person


@pytest.fixture
def without_codex(person: Person, tmp_path: Path) -> Person:
    """A person whose settings name a Codex that does not exist."""
    person.environ["OUTRIDER_CODEX_COMMAND"] = str(tmp_path / "nowhere" / "codex")
    return person


def install_codex(person: Person, url: str) -> None:
    """Set up the real Codex with this model server, but not as the default runtime."""
    settings = codex_settings(codex_home(person.folder, url))
    del settings["runtime.name"]
    person.environ |= {"OUTRIDER_" + name.replace(".", "_").upper(): value for name, value in settings.items()}


def list_runtimes(person: Person) -> dict[str, dict[str, Any]]:
    return {status["name"]: status for status in json.loads(person.types("runtime", "list", "--json").out)}


@pytest.mark.command("runtime")
def test_every_runtime_is_listed_with_its_version_its_login_and_the_default(with_parrot: Person) -> None:
    install_codex(with_parrot, "http://127.0.0.1:9/v1")
    statuses = list_runtimes(with_parrot)
    assert [(each["name"], each["is_default"], each["is_ready"]) for each in statuses.values()] == [
        ("native", True, True),
        ("acp", False, False),
        ("codex", False, True),
        ("parrot", False, True),
        ("remote", False, False),
    ]
    assert (statuses["codex"]["version"], statuses["codex"]["login"]) == ("0.163.0", "its model provider needs none")
    assert statuses["parrot"]["version"] == "outrider-parrot 1.0"
    assert (statuses["acp"]["is_installed"], "acp.command" in statuses["acp"]["advice"]) == (False, True)
    ran = with_parrot.types("runtime", "list")
    assert [line.split()[:2] for line in ran.out.splitlines()] == [
        ["*", "native"],
        ["acp", "not"],
        ["codex", "ready"],
        ["parrot", "ready"],
        ["remote", "not"],
    ]


def test_a_codex_that_is_not_installed_or_not_logged_in_is_reported_with_advice(without_codex: Person) -> None:
    person = without_codex
    missing = person.types("runtime", "doctor", "codex")
    assert missing.code == 1
    assert "✗ program" in missing.out
    assert "npm install -g @openai/codex" in missing.out
    assert "pip install openai-codex-cli-bin" in missing.out
    refused = person.types("runtime", "use", "codex")
    assert (refused.code, refused.out, "codex cannot be used yet" in refused.err) == (2, "", True)
    assert not (person.home / "config.toml").exists()
    del person.environ["OUTRIDER_CODEX_COMMAND"]
    person.environ |= {"OUTRIDER_CODEX_HOME": str(person.folder / "empty")}
    (person.folder / "empty").mkdir()
    barred = person.types("runtime", "doctor", "codex")
    assert barred.code == 1
    assert [line.split()[:2] for line in barred.out.splitlines()[:4]] == [
        ["✓", "program"],
        ["✓", "version"],
        ["✓", "start"],
        ["✗", "login"],
    ]
    assert "not logged in → codex login" in barred.out


def test_a_working_codex_passes_every_check_without_a_model_request(person: Person) -> None:
    with ScriptedServer(script(says("unused"))) as server:
        install_codex(person, server.url)
        report = json.loads(person.types("runtime", "doctor", "codex", "--json").out)
        assert person.types("runtime", "use", "codex").code == 0
        whole = person.types("doctor")
        assert len(server.requests) == 0
    assert report["ok"] is True
    assert [check["name"] for check in report["checks"]] == ["program", "version", "start", "login"]
    assert "✓ runtime   codex, 0.163.0, its model provider needs none" in whole.out
    assert "runtime" in (person.home / "config.toml").read_text()


def test_the_doctor_reports_a_default_runtime_that_cannot_be_used(without_codex: Person) -> None:
    ran = without_codex.types("doctor", environ={"OUTRIDER_RUNTIME": "codex"})
    assert (ran.code, "✗ runtime   codex: there is no program" in ran.out) == (1, True)
    ran = without_codex.types("doctor", environ={"OUTRIDER_RUNTIME": "gone"})
    assert (ran.code, "there is no runtime 'gone'" in ran.out, "runtime use native" in ran.out) == (1, True, True)


def test_an_unknown_runtime_is_refused_everywhere_with_the_closest_name(with_parrot: Person) -> None:
    for words in (("runtime", "use", "parot"), ("run", "-r", "parot", "hi"), ("config", "set", "runtime", "parot")):
        ran = with_parrot.types(*words)
        assert (ran.code, ran.out) == (2, "")
        assert "there is no runtime 'parot'; did you mean parrot?" in ran.err
    ran = with_parrot.types("run", "hi", environ={"OUTRIDER_RUNTIME": "gone"})
    assert (ran.code, "there is no runtime 'gone'; available: native" in ran.err) == (2, True)
    ran = with_parrot.types("run", "-r", "parrot:big", "hi")
    assert (ran.code, "a model cannot be chosen for parrot here" in ran.err) == (2, True)


def test_an_empty_runtime_name_is_refused(person: Person) -> None:
    for words in (("run", "--runtime", "", "hi"), ("runtime", "use", ""), ("runtime", "doctor", "")):
        ran = person.types(*words)
        assert (ran.code, ran.out, "there is no runtime ''; available: native" in ran.err) == (2, "", True)


def test_using_a_runtime_removes_the_model_that_an_earlier_use_has_set(person: Person) -> None:
    install_codex(person, "http://127.0.0.1:9/v1")
    file = person.home / "config.toml"
    assert person.types("runtime", "use", "codex:zz").code == 0
    assert 'model = "zz"' in file.read_text()
    assert person.types("runtime", "use", "codex:yy").code == 0
    assert 'model = "yy"' in file.read_text()
    assert person.types("runtime", "use", "native").code == 0
    assert "model" not in file.read_text()
    person.types("config", "set", "codex.model", "mine")
    for name in ("codex", "native"):
        assert person.types("runtime", "use", name).code == 0
    assert 'model = "mine"' in file.read_text()
    person.types("runtime", "use", "codex:zz")
    person.types("config", "set", "codex.model", "mine")
    person.types("runtime", "use", "native")
    assert 'model = "mine"' in file.read_text()


def test_a_third_party_runtime_runs_turns_by_flag_by_session_and_by_default(with_parrot: Person) -> None:
    assert with_parrot.types("run", "-s", "s", "-r", "parrot", "hello").out == "hello! (0 before)\n"
    assert with_parrot.types("run", "-s", "s", "again").out == "again! (0 before)\n"
    assert with_parrot.types("runtime", "use", "native", "--session", "s").out == (
        "session 's' uses native from its next turn on\n"
    )
    assert "practice model" in with_parrot.types("run", "-s", "s", "who are you?").out
    assert with_parrot.types("runtime", "use", "parrot", "-s", "s").code == 0
    assert with_parrot.types("run", "-s", "s", "back").out == "back! (2 before)\n"
    assert "practice model" in with_parrot.types("run", "hi").out
    used = with_parrot.types("runtime", "use", "parrot")
    assert (used.code, used.err, "parrot is now the default runtime" in used.out) == (0, "", True)
    assert with_parrot.types("run", "hi").out == "hi! (0 before)\n"
    assert "practice model" in with_parrot.types("run", "-m", "practice", "who are you?").out
    assert "practice model" in with_parrot.types("run", "-r", "native", "who are you?").out


def test_the_result_of_a_turn_has_its_thread_and_turn_and_the_transcript_its_runtime(with_parrot: Person) -> None:
    finished = with_parrot.types("run", "-s", "s", "-r", "parrot", "--json", "hello").lines[-1]
    assert (finished["type"], finished["thread"], finished["turn"]) == ("finished", "perch-1", "t-2")
    assert finished["text"] == "hello! (0 before)"
    transcript = with_parrot.types("sessions", "show", "s").out
    assert "runtime = parrot" in transcript
    assert "run by parrot" in transcript
    assert "parrot: thread perch-1, turn t-2, has seen the session up to #2" in transcript


@pytest.mark.behaviour("A1")
@pytest.mark.behaviour("A4")
def test_codex_is_chosen_by_flag_by_default_and_for_a_session_and_native_replaces_it(person: Person) -> None:
    with ScriptedServer(script(says("one"), says("two"))) as server:
        install_codex(person, server.url)
        first = person.types("run", "-s", "s", "--runtime", "codex", "--json", "hi").lines
        second = person.types("run", "-s", "s", "--json", "more").lines[-1]
        person.types("run", "-s", "s", "-r", "native", "list the files")
        assert person.types("runtime", "use", "codex").code == 0
        third = person.types("run", "--json", "elsewhere").lines[-1]
        model = person.types("run", "-s", "m", "-r", "codex:gpt-5.4", "hi")
        models = [request.body["model"] for request in server.requests]
    assert [line["runtime"] for line in first if line["type"] == "started"] == ["codex"]
    assert (first[-1]["text"], second["text"], third["text"], model.out) == ("one", "two", "one", "one\n")
    assert (second["thread"], bool(second["turn"])) == (first[-1]["thread"], True)
    assert first[-1]["turn"] != second["turn"]
    assert models == ["gpt-5.5", "gpt-5.5", "gpt-5.5", "gpt-5.4"]


@pytest.mark.needs("tmux")
@pytest.mark.behaviour("A1")
def test_in_the_chat_codex_takes_over_and_native_continues_with_the_whole_conversation(person: Person) -> None:
    with ScriptedServer(script(says("codex was here"), says("and again"))) as server:
        install_codex(person, server.url)
        with Terminal(person) as terminal:
            terminal.rests()
            terminal.says("write seen.txt saying otter")
            terminal.sees("seen.txt", times=2)
            terminal.rests()
            terminal.says("/runtime codex")
            terminal.sees("codex runs the turns of this session; it first receives what it has not seen")
            terminal.says("what was written?")
            terminal.sees("codex was here")
            screen = terminal.rests()
            terminal.says("/status")
            terminal.sees("runtime")
            terminal.says("/runtime native")
            terminal.sees("native runs the turns of this session; it sees the whole session")
            terminal.says("read seen.txt")
            terminal.sees("otter", times=2)
            assert "codex ·" not in terminal.rests().splitlines()[-1]
            terminal.says("/runtime codex:gpt-5.4")
            terminal.says("once more")
            terminal.sees("and again")
            assert "codex:gpt-5.4 ·" in terminal.rests().splitlines()[-1]
        first, second = server.requests
    assert "codex ·" in screen.splitlines()[-1]
    assert "codex received the earlier part of this session, up to #" in screen
    assert "write seen.txt saying otter" in texts(first)
    assert "read seen.txt" not in texts(first)
    assert "read seen.txt" in texts(second)
    assert second.body["model"] == "gpt-5.4"


@pytest.mark.needs("tmux")
def test_in_the_chat_a_message_during_a_reply_of_codex_appears_above_the_rest_of_it_and_a_stopped_command_is_shown(
    person: Person,
) -> None:
    words = "\n\n".join(f"paragraph {number} of some" for number in range(6))
    command = call("exec_command", cmd="sleep 600 # quite long", yield_time_ms=30_000)
    # The message makes Codex ask its model again. Until then nothing may arrive, or a block of the first reply could
    # complete below the message, and the whole reply after it would rightly be announced as restarted.
    with ScriptedServer(script((Stall("stream"), says(words)), says("", command))) as server:
        install_codex(person, server.url)
        with Terminal(person, "chat", "-r", "codex", "-s", "s") as terminal:
            terminal.rests()
            terminal.says("first question")
            terminal.sees("paragraph 2")
            terminal.says("second question")
            terminal.sees("paragraph 5 of some")
            screen = terminal.rests()
            terminal.says("run it")
            terminal.sees("$ sleep 600 # quite long …")
            terminal.presses("C-c")
            terminal.sees("✗ sleep 600 # quite long  interrupted")
            terminal.rests()
        with Terminal(person, "chat", "-s", "s") as terminal:
            again = terminal.rests()
    assert "was restarted" not in screen
    for text in (screen, again):
        assert text.index("› second question") < text.index("paragraph 5")


@pytest.mark.needs("tmux")
def test_a_chat_can_start_with_another_runtime_and_choosing_a_model_returns_to_native(with_parrot: Person) -> None:
    with Terminal(with_parrot, "chat", "-r", "parrot") as terminal:
        assert "with the runtime parrot" in terminal.rests()
        terminal.says("hello")
        terminal.sees("hello! (0 before)")
        terminal.rests()
        terminal.says("/runtime")
        terminal.sees("› parrot")
        terminal.says("/runtime parrot")
        terminal.sees("parrot already runs the turns of this session")
        terminal.says("/compact")
        terminal.sees("parrot manages its own context")
        terminal.says("/runtime parot")
        terminal.sees("did you mean parrot?")
        terminal.says("/model practice")
        terminal.sees("This session uses practice, with the native runtime instead of parrot")
        terminal.says("who are you?")
        terminal.sees("practice model")
        assert "practice ·" in terminal.rests().splitlines()[-1]


@pytest.mark.needs("tmux")
def test_a_command_beside_a_chat_chooses_for_its_session_and_says_whose_settings_apply(with_parrot: Person) -> None:
    with Terminal(with_parrot, "chat") as terminal:
        terminal.rests()
        chosen = with_parrot.types("run", "-s", "s", "-r", "parrot", "hello")
        other = with_parrot.types("run", "who are you?", environ={"OUTRIDER_RUNTIME": "parrot"})
        used = with_parrot.types("runtime", "use", "parrot")
        session = with_parrot.types("runtime", "use", "native", "-s", "s")
    assert (chosen.out, chosen.err) == ("hello! (0 before)\n", "")
    assert "practice model" in other.out
    assert "runs the turns, with its own settings: model practice, runtime native" in other.err
    assert "outrider chat (process " in used.err
    assert "keeps using native until it is restarted" in used.err
    assert session.out == "session 's' uses native from its next turn on\n"


def test_an_acp_agent_is_started_opens_a_session_and_is_stopped(person: Person, tmp_path: Path) -> None:
    agent = World(tmp_path)
    person.environ["OUTRIDER_ACP_COMMAND"] = agent.command()
    ran = person.types("runtime", "doctor", "acp")
    assert (ran.code, [line.split()[:2] for line in ran.out.splitlines()[:4]]) == (
        0,
        [["✓", "program"], ["✓", "start"], ["✓", "version"], ["✓", "login"]],
    )
    assert "opened a session; no prompt was sent" in ran.out
    assert (list_runtimes(person)["acp"]["is_ready"], len(agent.received("initialize"))) == (True, 2)
    assert len(agent.received("session/new")) == 1
    assert agent.prompts() == []
    person.environ["OUTRIDER_ACP_COMMAND"] = "no-such-agent --acp"
    missing = person.types("runtime", "doctor", "acp")
    assert (missing.code, "there is no program no-such-agent" in missing.out) == (1, True)
    person.environ["OUTRIDER_ACP_COMMAND"] = "false"
    dead = person.types("runtime", "doctor", "acp")
    assert (dead.code, "✗ start" in dead.out) == (1, True)
