"""Changing config.toml: everything but the one setting stays as it was, or nothing is touched."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.config.edit import set_value, unset_value
from outrider.config.load import load
from outrider.config.schema import SETTINGS, Setting, SettingKind
from outrider.core.errors import Refused


def changed(home: Path, before: str, name: str, value: str) -> str:
    (home / "config.toml").write_bytes(before.encode())
    set_value(home, name, value)
    return (home / "config.toml").read_bytes().decode()


def test_the_first_setting_makes_the_home_and_a_file_for_its_owner_alone(tmp_path: Path) -> None:
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
        ("limits.steps", "80", 'steps = 10   # "few" # really', 'steps = 80  # "few" # really'),
        ("limits.repeats", "5", "  repeats=2", "  repeats = 5"),
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


def test_what_looks_like_a_setting_inside_a_string_is_not_one(tmp_path: Path) -> None:
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
def test_rules_are_left_alone_wherever_they_stand(tmp_path: Path, name: str, value: str, old: str, new: str) -> None:
    (tmp_path / "config.toml").write_text(RULES)
    rules = load(tmp_path, {}).rules
    assert changed(tmp_path, RULES, name, value) == RULES.replace(old, new)
    assert (load(tmp_path, {}).rules, len(rules)) == (rules, 2)


def test_a_file_of_rules_alone_takes_settings_behind_them_and_gives_them_up_again(tmp_path: Path) -> None:
    for before in ('[[rules]]\nverdict = "ask"', 'rules = [\n  {verdict = "ask"},\n]'):
        after = changed(tmp_path, before, "log.level", "debug")
        assert after == before + '\n\n[log]\nlevel = "debug"\n'
        assert unset_value(tmp_path, "log.level")
        assert (tmp_path / "config.toml").read_text() == before + "\n\n[log]\n"
        assert [rule.verdict for rule in load(tmp_path, {}).rules] == ["ask"]


def test_rules_are_neither_set_nor_removed_by_name(tmp_path: Path) -> None:
    told = "rules are not set one by one: write each under [[rules]] in config.toml"
    for before in ("", RULES, "rules = []\n"):
        path = tmp_path / "config.toml"
        path.write_text(before)
        for change in (lambda: set_value(tmp_path, "rules", "x"), lambda: unset_value(tmp_path, "rules")):
            with pytest.raises(Refused) as refused:
                change()
            assert (str(refused.value), path.read_text()) == (told, before)
    with pytest.raises(Refused, match=r"no setting is called rules\.verdict"):
        unset_value(tmp_path, "rules.verdict")


def test_a_folder_that_holds_our_own_files_is_not_written_down(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^sandbox\.read: Outrider's own files in"):
        set_value(tmp_path, "sandbox.read", f"/opt,{tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_a_short_name_at_the_top_makes_room_for_its_neighbours(tmp_path: Path) -> None:
    after = changed(tmp_path, 'model = "practice"  # for now\n', "model.window", "9")
    assert after == 'model.name = "practice"  # for now\nmodel.window = 9\n'
    assert (
        changed(tmp_path, 'model = "practice"  # for now\n', "model", "practice:b")
        == 'model = "practice:b"  # for now\n'
    )


def test_line_ends_of_another_system_and_a_missing_last_one_are_respected(tmp_path: Path) -> None:
    after = changed(tmp_path, "[limits]\r\nsteps = 1", "limits.queue", "2")
    assert after == "[limits]\r\nsteps = 1\r\nqueue = 2\r\n"


def test_a_form_that_is_not_safe_to_change_is_left_untouched(tmp_path: Path) -> None:
    before = "limits = {steps = 1, queue = 2}\n"
    for change in (lambda: set_value(tmp_path, "limits.steps", "5"), lambda: unset_value(tmp_path, "limits.steps")):
        path = tmp_path / "config.toml"
        path.write_text(before)
        with pytest.raises(Refused) as refused:
            change()
        told = f"{path}: limits.steps stands in a form that is not safe to change here; edit the file by hand"
        assert (str(refused.value), path.read_text()) == (told, before)


def test_a_bad_value_a_broken_file_and_a_nonsense_model_change_nothing(tmp_path: Path) -> None:
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


def test_a_setting_is_removed_with_its_line_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    assert [unset_value(tmp_path, "limits.queue"), unset_value(tmp_path, "limits.queue")] == [True, False]
    assert path.read_text() == FILE.replace("queue = 3\n", "")


def test_a_key_that_is_no_setting_can_be_removed_so_that_the_file_loads_again(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[limits]\nstep = 3\nsteps = 4\n")
    assert unset_value(tmp_path, "limits.step")
    assert load(tmp_path, {}).limits.steps == 4
    with pytest.raises(Refused, match=r"no setting is called limits\.stepz; did you mean limits\.steps\?"):
        unset_value(tmp_path, "limits.stepz")


def test_a_linked_file_stays_linked(tmp_path: Path) -> None:
    kept = tmp_path / "kept.toml"
    kept.write_text("# kept elsewhere\n")
    (tmp_path / "config.toml").symlink_to(kept)
    set_value(tmp_path, "limits.steps", "2")
    assert ((tmp_path / "config.toml").is_symlink(), kept.read_text()) == (
        True,
        "# kept elsewhere\n\n[limits]\nsteps = 2\n",
    )


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
def test_any_sequence_of_changes_leaves_a_file_that_says_just_that(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[Setting, str | None]], has_rules: bool
) -> None:
    home, meant = tmp_path_factory.mktemp("home"), dict[str, str]()
    (home / "config.toml").write_text('[[rules]]\nverdict = "ask"\n' if has_rules else "")
    rules = load(home, {}).rules
    for setting, text in changes:
        if text is None:
            assert unset_value(home, setting.name) == (setting.name in meant)
            meant.pop(setting.name, None)
        else:
            set_value(home, setting.name, text)
            meant[setting.name] = text
    written, flags = load(home, {}), load(home / "none", {}, meant)
    assert written.rules == rules
    names = [setting.name for setting in SETTINGS if meant.get(setting.name)]
    assert [str(written.value(name)) for name in names] == [str(flags.value(name)) for name in names]
    assert written.model.key.reveal() == flags.model.key.reveal()
