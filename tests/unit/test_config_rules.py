"""Approval rules in config.toml: parsed strictly, with errors that say how to correct them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.config.load import load
from outrider.config.rules import parse_rules
from outrider.core.approvals import AccessDecision, ApprovalRequest, Rule, decide_access
from outrider.core.errors import Refused


def load_rules(home: Path, text: str) -> tuple[Rule, ...]:
    (home / "config.toml").write_text(text)
    return load(home, {}).rules


def refusal(home: Path, text: str) -> str:
    with pytest.raises(Refused) as refused:
        load_rules(home, text)
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix(f"{home / 'config.toml'}: ")


def test_by_default_there_are_no_rules(tmp_path: Path) -> None:
    assert (load(tmp_path, {}).rules, load_rules(tmp_path, "rules = []\n")) == ((), ())


def test_rules_are_parsed_in_order_with_defaults_for_missing_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "site").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "site")
    text = """
[[rules]]
verdict = "allow"
tool = "shell"
argv = ["git", "fetch"]
workspace = "~/link/"
needs = ["network", "read:~/.keys", "write:/var/../opt", "host"]

[limits]
steps = 3

[[rules]]
verdict = "deny"
"""
    home = tmp_path / ".outrider"
    home.mkdir()
    assert load_rules(home, text) == (
        Rule(
            verdict="allow",
            tool="shell",
            argv=("git", "fetch"),
            workspace=str((tmp_path / "site").resolve()),
            needs=("network", f"read:{tmp_path}/.keys", "write:/opt", "host"),
        ),
        Rule(verdict="deny"),
    )
    assert load(home, {}).limits.steps == 3


def test_a_parsed_rule_decides_about_calls(tmp_path: Path) -> None:
    parsed = load_rules(
        tmp_path,
        '[[rules]]\nverdict = "allow"\nargv = ["git", "fetch"]\nneeds = ["network"]\n'
        '[[rules]]\nverdict = "deny"\nargv = ["git", "push"]\n',
    )
    verdicts = {
        command: decide_access(ApprovalRequest("shell", command, ("network",), "/w"), parsed, frozenset()).verdict
        for command in ("git fetch origin", "git fetch; git push", "git push", "git pull")
    }
    assert verdicts == {
        "git fetch origin": "allow",
        "git fetch; git push": "ask",
        "git push": "deny",
        "git pull": "ask",
    }


def test_a_denial_names_the_rule_and_its_number(tmp_path: Path) -> None:
    parsed = load_rules(
        tmp_path,
        '[[rules]]\nverdict = "ask"\ntool = "write"\n'
        '[[rules]]\nverdict = "deny"\ntool = "shell"\nargv = ["git", "push"]\nworkspace = "/w"\n',
    )
    decision = decide_access(ApprovalRequest("shell", "git push origin", (), "/w"), parsed, frozenset())
    assert decision == AccessDecision("deny", "a rule denies it (rule 2: deny shell: git push …, in /w)")


ARGV = 'the first words of a command without shell syntax, such as ["git", "push"]'
NEEDS = 'a list of "network", "host", "codex", "read:PATH" and "write:PATH", each path beginning with / or ~'


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ('tool = "shell"', "verdict is missing; allowed: allow, ask or deny"),
        ('verdict = "alow"', "verdict = 'alow' is not valid; allowed: allow, ask or deny; did you mean allow?"),
        ("verdict = true", "verdict = True is not valid; allowed: allow, ask or deny"),
        ('verdict = "ask"\ntools = "shell"', "there is no key tools; did you mean tool?"),
        ('verdict = "ask"\n"a\\nb" = 1', "there is no key 'a\\nb'"),
        (
            'verdict = "ask"\ntool = "sh*"',
            "tool = 'sh*' is not valid; allowed: the name of a tool, or \"*\" for every tool",
        ),
        ('verdict = "ask"\ntool = ""', "tool = '' is not valid; allowed: the name of a tool, or \"*\" for every tool"),
        ('verdict = "ask"\nargv = "git push"', f"argv = 'git push' is not valid; allowed: {ARGV}"),
        ('verdict = "ask"\nargv = ["git push"]', f"argv = 'git push' is not valid; allowed: {ARGV}"),
        ('verdict = "ask"\nargv = ["git", "*"]', f"argv = '*' is not valid; allowed: {ARGV}"),
        ('verdict = "ask"\nargv = ["git", 1]', f"argv = 1 is not valid; allowed: {ARGV}"),
        ('verdict = "ask"\nargv = [""]', f"argv = '' is not valid; allowed: {ARGV}"),
        (
            'verdict = "ask"\nworkspace = "site"',
            "workspace = 'site' is not valid; allowed: a folder, beginning with / or ~",
        ),
        ('verdict = "allow"\nneeds = "network"', f"needs = 'network' is not valid; allowed: {NEEDS}"),
        ('verdict = "allow"\nneeds = ["net"]', f"needs = 'net' is not valid; allowed: {NEEDS}; did you mean network?"),
        ('verdict = "allow"\nneeds = ["read:x"]', f"needs = 'read:x' is not valid; allowed: {NEEDS}"),
        ('verdict = "allow"\nneeds = ["write:"]', f"needs = 'write:' is not valid; allowed: {NEEDS}"),
        ('verdict = "allow"\nneeds = ["run:/x"]', f"needs = 'run:/x' is not valid; allowed: {NEEDS}"),
        (
            'verdict = "deny"\nneeds = ["network"]',
            'needs is for verdict = "allow" only; deny applies to whatever a call needs',
        ),
    ],
)
def test_an_error_names_the_file_the_rule_the_key_and_the_allowed_values(
    tmp_path: Path, rule: str, message: str
) -> None:
    assert refusal(tmp_path, f'[[rules]]\nverdict = "deny"\n\n[[rules]]\n{rule}\n') == f"rule 2: {message}"


@pytest.mark.parametrize("text", ["rules = 3", 'rules = ["deny"]', '[rules]\nverdict = "deny"', "[rules.a]"])
def test_rules_must_be_an_array_of_tables(tmp_path: Path, text: str) -> None:
    assert refusal(tmp_path, text) == "rules must be tables: write [[rules]] above each one"


def test_a_misspelt_array_is_refused_with_the_right_name(tmp_path: Path) -> None:
    assert refusal(tmp_path, '[[rule]]\nverdict = "deny"') == "there is no setting rule; did you mean rules?"


@pytest.mark.parametrize("need", ["read:{home}/config.toml", "write:{home}", "write:/", "read:{home}/.."])
def test_no_rule_gives_access_to_outriders_own_files(tmp_path: Path, need: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    message = refusal(home, f'[[rules]]\nverdict = "allow"\nneeds = ["{need.format(home=home)}"]\n')
    assert message.startswith("rule 1: needs: ")
    assert message.endswith(f" would give access to Outrider's own files in {home}; name another folder")


def test_a_rule_without_effect_causes_a_warning(tmp_path: Path) -> None:
    load_rules(tmp_path, '[[rules]]\nverdict = "deny"\n[[rules]]\nverdict = "allow"\nargv = ["git", "push"]\n')
    assert load(tmp_path, {}).warnings == (
        'rule 2 has no effect: it allows only what needs no approval; add, for example, needs = ["network"]',
    )


def test_rules_cannot_be_set_by_the_environment_or_flags(tmp_path: Path) -> None:
    config = load(tmp_path, {"OUTRIDER_RULES": '[{verdict = "allow"}]'})
    assert (config.rules, config.warnings) == (
        (),
        ("OUTRIDER_RULES is not a setting; rules can only be set in config.toml",),
    )
    with pytest.raises(Refused, match="rules cannot be set one by one"):
        load(tmp_path, {}, {"rules": "x"})


_VALUES = st.one_of(
    st.text(max_size=8), st.integers(), st.booleans(), st.lists(st.text(max_size=8) | st.integers(), max_size=3)
)


@given(table=st.dictionaries(st.sampled_from(["verdict", "tool", "argv", "workspace", "needs", "x"]), _VALUES))
def test_any_content_of_a_rule_is_parsed_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, table: dict[str, object]
) -> None:
    home = tmp_path_factory.mktemp("home")
    lines = "\n".join(f"{key} = {_toml(value)}" for key, value in table.items())
    (home / "config.toml").write_text(f"[[rules]]\n{lines}\n", encoding="utf-8")
    try:
        assert len(load(home, {}).rules) == 1
    except Refused as refused:
        assert "\n" not in str(refused)  # noqa: PT017


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(f"\\U{ord(letter):08X}" for letter in value) + '"'
        case list():
            return f"[{', '.join(map(_toml, value))}]"  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return str(value)


def test_a_link_in_the_needs_of_a_rule_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    rule = {"verdict": "allow", "needs": [f"read:{tmp_path}/link", f"write:{tmp_path}/link/new"]}
    (parsed,) = parse_rules([rule], tmp_path / "config.toml", tmp_path / "home")
    assert parsed.needs == (f"read:{tmp_path}/real", f"write:{tmp_path}/real/new")
