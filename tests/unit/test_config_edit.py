"""Editing config.toml: one setting changes and everything else stays as it was, or the file is left untouched."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.config.edit import read_with_comment, set_value, unset_value
from outrider.config.load import load
from outrider.config.schema import SETTINGS
from outrider.config.setting_values import Setting, SettingKind
from outrider.core.errors import Refused


def changed(home: Path, before: str, name: str, value: str) -> str:
    (home / "config.toml").write_bytes(before.encode())
    set_value(home, name, value)
    return (home / "config.toml").read_bytes().decode()


def test_the_first_setting_creates_the_home_and_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    home = tmp_path / "deep" / "home"
    path = set_value(home, "limits.steps", "80")
    assert (path, path.read_text()) == (home / "config.toml", "[limits]\nsteps = 80\n")
    assert (path.stat().st_mode & 0o777, home.stat().st_mode & 0o777) == (0o600, 0o700)
    assert list(home.iterdir()) == [path]


FILE = """\
# mine
[limits]   # bounds
steps = 10   # "few" # really

queue = 3
  repeats=2

[log]
level = 'info'
"""


@pytest.mark.parametrize(
    ("name", "value", "old", "new"),
    [
        ("limits.steps", "80", 'steps = 10   # "few" # really', 'steps = 80   # "few" # really'),
        ("limits.repeats", "5", "  repeats=2", "  repeats=5"),
        ("log.level", "debug", "level = 'info'", 'level = "debug"'),
        ("limits.turns", "4", "  repeats=2\n", "  repeats=2\nturns = 4\n"),
        ("chat.history", "no", "level = 'info'\n", "level = 'info'\n\n[chat]\nhistory = false\n"),
        (
            "model.fallbacks",
            "practice:a,practice:b",
            "'info'\n",
            '\'info\'\n\n[model]\nfallbacks = ["practice:a", "practice:b"]\n',
        ),
    ],
)
def test_only_the_one_setting_changes(tmp_path: Path, name: str, value: str, old: str, new: str) -> None:
    assert changed(tmp_path, FILE, name, value) == FILE.replace(old, new)


def test_a_value_over_several_lines_is_replaced_as_a_whole(tmp_path: Path) -> None:
    before = '[model]\nfallbacks = [\n  "practice:a", # first\n  "practice:b",\n]\nwindow = 7\n'
    assert (
        changed(tmp_path, before, "model.fallbacks", "practice:c")
        == '[model]\nfallbacks = ["practice:c"]\nwindow = 7\n'
    )


def test_text_in_a_string_that_looks_like_a_setting_is_not_changed(tmp_path: Path) -> None:
    before = '[model]\nname = """practice:\\\n[limits]\\\nsteps = 1"""\n'
    assert changed(tmp_path, before, "limits.steps", "9") == before + "\n[limits]\nsteps = 9\n"


RULES = """\
model = "practice"

# Mine.
[[rules]]   # no pushing
verdict = "deny"
argv = [
  "git", "push",  # [limits]
]

[limits]
steps = 1

[[rules]]
verdict = "ask"
tool = "write"
"""


@pytest.mark.parametrize(
    ("name", "value", "old", "new"),
    [
        ("limits.steps", "2", "steps = 1", "steps = 2"),
        ("limits.queue", "5", "steps = 1\n", "steps = 1\nqueue = 5\n"),
        ("model", "practice:b", '"practice"', '"practice:b"'),
        ("model.window", "9", 'model = "practice"\n', 'model.name = "practice"\nmodel.window = 9\n'),
        ("shell.tasks", "7", '"write"\n', '"write"\n\n[shell]\ntasks = 7\n'),
        ("sandbox.read", "/opt,/srv", '"write"\n', '"write"\n\n[sandbox]\nread = ["/opt", "/srv"]\n'),
    ],
)
def test_rules_stay_unchanged_wherever_they_are_in_the_file(
    tmp_path: Path, name: str, value: str, old: str, new: str
) -> None:
    (tmp_path / "config.toml").write_text(RULES)
    rules = load(tmp_path, {}).rules
    assert changed(tmp_path, RULES, name, value) == RULES.replace(old, new)
    assert (load(tmp_path, {}).rules, len(rules)) == (rules, 2)


def test_settings_are_added_to_and_removed_from_a_file_that_only_has_rules(tmp_path: Path) -> None:
    for before in ('[[rules]]\nverdict = "ask"', 'rules = [\n  {verdict = "ask"},\n]'):
        after = changed(tmp_path, before, "log.level", "debug")
        assert after == before + '\n\n[log]\nlevel = "debug"\n'
        assert unset_value(tmp_path, "log.level")
        assert (tmp_path / "config.toml").read_text() == before + "\n\n[log]\n"
        assert [rule.verdict for rule in load(tmp_path, {}).rules] == ["ask"]


def test_rules_cannot_be_set_or_removed_by_name(tmp_path: Path) -> None:
    message = "rules cannot be set one by one: write each one under [[rules]] in config.toml"
    for before in ("", RULES, "rules = []\n"):
        path = tmp_path / "config.toml"
        path.write_text(before)
        for change in (lambda: set_value(tmp_path, "rules", "x"), lambda: unset_value(tmp_path, "rules")):
            with pytest.raises(Refused) as refused:
                change()
            assert (str(refused.value), path.read_text()) == (message, before)
    with pytest.raises(Refused, match=r"there is no setting rules\.verdict"):
        unset_value(tmp_path, "rules.verdict")


def test_a_folder_that_contains_outriders_own_files_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^sandbox\.read: .+ would give access to Outrider's own files in"):
        set_value(tmp_path, "sandbox.read", f"/opt,{tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_an_alias_is_written_out_when_another_setting_of_its_section_is_added(tmp_path: Path) -> None:
    after = changed(tmp_path, 'model = "practice"  # for now\n', "model.window", "9")
    assert after == 'model.name = "practice"  # for now\nmodel.window = 9\n'
    assert (
        changed(tmp_path, 'model = "practice"  # for now\n', "model", "practice:b")
        == 'model = "practice:b"  # for now\n'
    )


def test_windows_line_ends_are_kept_and_a_missing_last_one_is_added(tmp_path: Path) -> None:
    after = changed(tmp_path, "[limits]\r\nsteps = 1", "limits.queue", "2")
    assert after == "[limits]\r\nsteps = 1\r\nqueue = 2\r\n"


def test_a_comment_above_the_next_table_stays_there(tmp_path: Path) -> None:
    before = "[limits]\nsteps = 1  # few\n\n# How much is logged.\n[log]\nlevel = 'info'\n"
    after = changed(tmp_path, before, "limits.queue", "5")
    assert after == before.replace("# few\n", "# few\nqueue = 5\n")


def test_an_inline_table_is_changed_in_place(tmp_path: Path) -> None:
    before = "limits = {steps = 1, queue = 2}  # bounds\n"
    assert changed(tmp_path, before, "limits.steps", "5") == before.replace("1", "5")
    assert unset_value(tmp_path, "limits.steps")
    assert load(tmp_path, {}).source("limits.steps") == "default"
    assert load(tmp_path, {}).limits.queue == 2


@pytest.mark.parametrize(
    ("before", "name"),
    [('"model" = "practice"\n', "model.window"), ("[limits]\r\nsteps = 1\n[log]\r\n", "limits.steps")],
    ids=["quoted alias", "mixed line ends"],
)
def test_a_file_that_cannot_be_changed_safely_is_left_untouched(tmp_path: Path, before: str, name: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(before.encode())
    with pytest.raises(Refused) as refused:
        set_value(tmp_path, name, "5")
    message = f"{path}: {name} is written in a form that cannot be changed safely; edit the file by hand"
    assert (str(refused.value), path.read_bytes()) == (message, before.encode())


def test_an_invalid_value_a_broken_file_and_an_unknown_model_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[limits]\nsteps = 1\n")
    for name, value in (("limits.steps", "0"), ("model", "gpt-5.5"), ("model.fallbacks", "practice,nosuch:x")):
        with pytest.raises(Refused):
            set_value(tmp_path, name, value)
    assert path.read_text() == "[limits]\nsteps = 1\n"
    path.write_text("[limits\n")
    with pytest.raises(Refused):
        set_value(tmp_path, "limits.steps", "2")
    assert path.read_text() == "[limits\n"


def test_removing_a_setting_removes_its_line_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    assert [unset_value(tmp_path, "limits.queue"), unset_value(tmp_path, "limits.queue")] == [True, False]
    assert path.read_text() == FILE.replace("queue = 3\n", "")


def test_an_unknown_key_can_be_removed_so_that_the_file_loads_again(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[limits]\nstep = 3\nsteps = 4\n")
    assert unset_value(tmp_path, "limits.step")
    assert load(tmp_path, {}).limits.steps == 4
    with pytest.raises(Refused, match=r"there is no setting limits\.stepz; did you mean limits\.steps\?"):
        unset_value(tmp_path, "limits.stepz")


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    target = tmp_path / "target.toml"
    target.write_text("# the real file\n")
    (tmp_path / "config.toml").symlink_to(target)
    set_value(tmp_path, "limits.steps", "2")
    assert ((tmp_path / "config.toml").is_symlink(), target.read_text()) == (
        True,
        "# the real file\n\n[limits]\nsteps = 2\n",
    )


def test_a_note_becomes_the_comment_behind_the_value_and_is_read_back(tmp_path: Path) -> None:
    before = '[codex]\nmodel = "a"  # mine\n'
    (tmp_path / "config.toml").write_text(before)
    assert read_with_comment(tmp_path, "codex.model") == ("a", "mine")
    set_value(tmp_path, "codex.model", "b", "from the catalogue")
    assert (tmp_path / "config.toml").read_text() == '[codex]\nmodel = "b" # from the catalogue\n'
    assert read_with_comment(tmp_path, "codex.model") == ("b", "from the catalogue")
    assert read_with_comment(tmp_path, "codex.home") == (None, "")


def _text_for(setting: Setting) -> st.SearchStrategy[str]:
    match setting.kind:
        case SettingKind.INTEGER:
            return st.integers(int(setting.minimum or 0), int(setting.maximum or 10**9)).map(str)
        case SettingKind.NUMBER:
            return st.floats(setting.minimum or 0, setting.maximum or 1e9).map(str)
        case SettingKind.BOOLEAN:
            return st.sampled_from(["true", "no"])
        case SettingKind.URL:
            return st.sampled_from(["", "http://127.0.0.1:1/v1", "https://example.org"])
        case SettingKind.NAMES:
            return st.sampled_from(["", "practice", "practice:a,practice:b"])
        case SettingKind.FOLDERS:
            return st.sampled_from(["", "/opt", "/usr/share,/opt/tools"])
        case SettingKind.TEXT if setting.choices:
            return st.sampled_from(setting.choices)
        case SettingKind.TEXT | SettingKind.SECRET:
            return st.text(st.characters(categories=["L", "N", "P", "S"])).map(lambda text: f"practice:{text}")


_CHANGES = st.lists(
    st.sampled_from(SETTINGS).flatmap(lambda setting: st.tuples(st.just(setting), st.none() | _text_for(setting))),
    max_size=8,
)


@given(changes=_CHANGES, has_rules=st.booleans())
def test_any_sequence_of_changes_leaves_a_file_with_exactly_those_settings(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[Setting, str | None]], has_rules: bool
) -> None:
    home, expected = tmp_path_factory.mktemp("home"), dict[str, str]()
    (home / "config.toml").write_text('[[rules]]\nverdict = "ask"\n' if has_rules else "")
    rules = load(home, {}).rules
    for setting, text in changes:
        if text is None:
            assert unset_value(home, setting.name) == (setting.name in expected)
            expected.pop(setting.name, None)
        else:
            set_value(home, setting.name, text)
            expected[setting.name] = text
    from_file, from_flags = load(home, {}), load(home / "none", {}, expected)
    assert from_file.rules == rules
    names = [setting.name for setting in SETTINGS if expected.get(setting.name)]
    assert [str(from_file.value(name)) for name in names] == [str(from_flags.value(name)) for name in names]
    assert from_file.model.key.reveal() == from_flags.model.key.reveal()
