"""`outrider config`: settings are listed, read, written and removed; secrets are never printed."""

import json
from pathlib import Path

import pytest

from outrider.config.schema import SETTINGS
from tests.support.in_process import InProcessPerson

SECRET = "sk-do-not-tell"


class Shell:
    """A person who only types `outrider config`."""

    def __init__(self, folder: Path) -> None:
        self._person = InProcessPerson(folder)
        self._person.environ["COLUMNS"] = "100"
        self.home = self._person.home
        self.home.mkdir(mode=0o700)
        self.environ = self._person.environ

    def types(self, *words: str, stdin: str = "") -> tuple[int, str, str]:
        ran = self._person.types("config", *words, stdin=stdin.encode())
        assert SECRET not in ran.out + ran.err
        return ran.code, ran.out, ran.err

    def file(self) -> str:
        return (self.home / "config.toml").read_text()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.mark.command("config")
def test_a_setting_is_written_read_and_removed(shell: Shell) -> None:
    path = shell.home / "config.toml"
    assert shell.types("path") == (0, f"{path}\n", "")
    assert shell.types("get", "limits.steps") == (0, "60\n", "")
    assert shell.types("set", "limits.steps", "80") == (0, f"saved limits.steps in {path}\n", "")
    assert shell.types("get", "limits.steps") == (0, "80\n", "")
    assert shell.file() == "[limits]\nsteps = 80\n"
    assert shell.types("unset", "limits.steps") == (0, f"removed limits.steps from {path}\n", "")
    assert shell.types("unset", "limits.steps") == (0, f"limits.steps was not set in {path}\n", "")
    assert shell.types("get", "limits.steps") == (0, "60\n", "")


@pytest.mark.behaviour("C9")
def test_every_setting_is_listed_by_category_with_its_value_and_source(shell: Shell) -> None:
    shell.environ["OUTRIDER_LIMITS_QUEUE"] = "7"
    shell.types("set", "model", "practice")
    code, out, err = shell.types("list")
    lines = out.splitlines()
    assert (code, err, max(len(line) for line in lines) <= 100) == (0, "", True)
    rows = [line.split() for line in lines if line.startswith("  ")]
    assert [row[0] for row in rows] == ["name", *(setting.name for setting in SETTINGS), "rules"]
    assert [line for line in lines if line and not line.startswith(" ")] == [
        "model",
        "limits",
        "runtime",
        "codex",
        "acp",
        "remote",
        "shell",
        "sandbox",
        "delegate",
        "asks",
        "chat",
        "http",
        "webhook",
        "log",
        "rules",
    ]
    assert rows[1][:3] == ["model.name", "practice", "config.toml"]
    assert next(row[1:4] for row in rows if row[0] == "limits.queue") == ["7", "environment", "OUTRIDER_LIMITS_QUEUE"]


def test_a_narrow_terminal_cuts_descriptions_and_never_values(shell: Shell) -> None:
    rows = dict[str, str]()
    for width in ("60", "20"):
        shell.environ["COLUMNS"] = width
        rows[width] = next(line for line in shell.types("list")[1].splitlines() if "limits.input" in line)
    assert rows == {
        "60": "  limits.input        1000000          default  Maximum len…",
        "20": "  limits.input        1000000          default",
    }


def test_the_list_is_available_as_json(shell: Shell) -> None:
    shell.environ["OUTRIDER_MODEL_KEY"] = SECRET
    code, out, _ = shell.types("list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert (code, list(rows)) == (0, [*(setting.name for setting in SETTINGS), "rules"])
    assert rows["limits.steps"] == {
        "name": "limits.steps",
        "value": 60,
        "source": "default",
        "category": "limits",
        "description": "Maximum steps in one turn.",
        "default": 60,
        "secret": False,
        "variable": "OUTRIDER_LIMITS_STEPS",
    }
    assert rows["model.key"]["value"] == "set (from environment OUTRIDER_MODEL_KEY)"
    assert json.loads(shell.types("get", "limits.steps", "--json")[1]) == rows["limits.steps"]


def test_rules_are_counted_in_the_list_and_printed_one_by_one(shell: Shell) -> None:
    assert shell.types("get", "rules") == (0, "none\n", "")
    assert shell.types("list")[1].splitlines()[-1].split()[:3] == ["rules", "none", "default"]
    (shell.home / "config.toml").write_text(
        f"""\
[[rules]]
verdict = "allow"
tool = "shell"
argv = ["git", "fetch"]
workspace = "{shell.home}/site"
needs = ["network", "read:/opt/keys"]

[[rules]]
verdict = "deny"
"""
    )
    where = f"{shell.home}/site"
    lines = [f"1. allow shell: git fetch …, in {where}, with network, read:/opt/keys", "2. deny every tool"]
    assert shell.types("get", "rules") == (0, "\n".join(lines) + "\n", "")
    assert shell.types("list")[1].splitlines()[-1].split()[:4] == ["rules", "2", "rules", "config.toml"]
    row = json.loads(shell.types("get", "rules", "--json")[1])
    needs = ["network", "read:/opt/keys"]
    assert row == {
        "name": "rules",
        "value": [
            {"verdict": "allow", "tool": "shell", "argv": ["git", "fetch"], "workspace": where, "needs": needs},
            {"verdict": "deny", "tool": "*", "argv": [], "workspace": "", "needs": []},
        ],
        "source": "config.toml",
        "category": "rules",
        "description": "Approval rules: which calls to allow, ask about or deny.",
        "default": [],
        "secret": False,
        "variable": "",
    }
    assert json.loads(shell.types("list", "--json")[1])[-1] == row


def test_a_mistake_in_a_rule_is_reported_with_its_number(shell: Shell) -> None:
    path = shell.home / "config.toml"
    path.write_text('[[rules]]\nverdict = "ask"\n\n[[rules]]\nverdikt = "deny"\n')
    problem = f"outrider: {path}: rule 2: there is no key verdikt; did you mean verdict?\n"
    assert shell.types("get", "rules") == (2, "", problem)
    assert shell.types("set", "limits.queue", "5") == (0, f"saved limits.queue in {path}\n", problem)
    assert shell.types("unset", "limits.queue") == (0, f"removed limits.queue from {path}\n", problem)


def test_a_secret_from_stdin_is_stored_privately_and_never_printed(shell: Shell) -> None:
    path = shell.home / "config.toml"
    assert shell.types("set", "model.key", "-", stdin=f"{SECRET}\n") == (0, f"saved model.key in {path}\n", "")
    assert (shell.file(), path.stat().st_mode & 0o777) == (f'[model]\nkey = "{SECRET}"\n', 0o600)
    assert shell.types("get", "model.key") == (0, "set (from config.toml)\n", "")
    assert "set (from config.toml)" in shell.types("list")[1]


def test_a_secret_on_the_command_line_comes_with_advice(shell: Shell) -> None:
    _, _, err = shell.types("set", "model.key", SECRET)
    assert err == "outrider: your shell may have saved this secret; next time use: outrider config set model.key -\n"
    shell.environ["MY_KEY"] = "x"
    assert shell.types("set", "model.key", "env:MY_KEY")[2] == ""
    assert shell.types("get", "model.key") == (0, "set (from env:MY_KEY)\n", "")


def test_a_written_value_that_the_environment_overrides_is_reported(shell: Shell) -> None:
    shell.environ["OUTRIDER_LIMITS_STEPS"] = "5"
    assert shell.types("set", "limits.steps", "80")[2] == "outrider: environment OUTRIDER_LIMITS_STEPS overrides it\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("get", "limits.step"), "there is no setting limits.step; did you mean limits.steps?"),
        (("set", "limit.steps", "1"), "there is no setting limit.steps; did you mean limits.steps?"),
        (("set", "limits.steps", "0"), "limits.steps = 0 is not valid; allowed: a whole number from 1 to 10,000"),
        (("set", "limits.spend", "-1"), "limits.spend = -1.0 is not valid; allowed: a number, at least 0"),
        (("set", "model", "gpt-5.5"), "'gpt-5.5' names a model but no provider; write, for example, openai:gpt-5.5"),
        (("set", "runtime", "native:x"), "a model cannot be chosen for native here: write native alone"),
        (("get", "rule"), "there is no setting rule; did you mean rules?"),
        (("set", "rules", "x"), "rules cannot be set one by one: write each one under [[rules]] in config.toml"),
        (("unset", "limits.step"), "there is no setting limits.step; did you mean limits.steps?"),
    ],
)
def test_an_invalid_name_or_value_is_reported_in_one_line(shell: Shell, words: tuple[str, ...], problem: str) -> None:
    assert shell.types(*words) == (2, "", f"outrider: {problem}\n")
    assert list(shell.home.iterdir()) == []


def test_a_mistake_in_the_file_is_reported_and_can_be_corrected(shell: Shell) -> None:
    path = shell.home / "config.toml"
    path.write_text("[limits]\nsteps = 0\n")
    problem = f"outrider: {path}: limits.steps = 0 is not valid; allowed: a whole number from 1 to 10,000\n"
    assert shell.types("list") == (2, "", problem)
    assert shell.types("set", "limits.queue", "5") == (0, f"saved limits.queue in {path}\n", problem)
    assert shell.types("set", "limits.steps", "6") == (0, f"saved limits.steps in {path}\n", "")
    path.write_text('model = "anthropix:x"\n')
    code, _, err = shell.types("set", "limits.steps", "6")
    assert (code, err) == (0, "outrider: there is no provider or wire 'anthropix'; did you mean anthropic:x?\n")


def test_a_variable_that_is_no_setting_is_warned_about(shell: Shell) -> None:
    shell.environ["OUTRIDER_LIMITS_STEP"] = "5"
    code, _, err = shell.types("list")
    warning = "outrider: OUTRIDER_LIMITS_STEP is not a setting; did you mean OUTRIDER_LIMITS_STEPS?\n"
    assert (code, err) == (0, warning)
