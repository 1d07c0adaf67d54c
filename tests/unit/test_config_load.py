"""Reading settings: which place wins, and how a mistake is told."""

from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.config.load import find_home, load
from outrider.config.page import render_page
from outrider.config.schema import SETTINGS, Config, SettingKind
from outrider.config.secrets import Secret
from outrider.core.errors import Refused


def written(home: Path, text: str, mode: int = 0o600) -> Path:
    path = home / "config.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def refusal(home: Path, environ: dict[str, str] | None = None, overrides: dict[str, str] | None = None) -> str:
    with pytest.raises(Refused) as refused:
        load(home, environ or {}, overrides)
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_without_any_setting_every_value_is_its_default(tmp_path: Path) -> None:
    config = load(tmp_path, {})
    assert {s.name: config.value(s.name) for s in SETTINGS if not s.is_secret} == {
        s.name: s.default for s in SETTINGS if not s.is_secret
    }
    assert {config.source(s.name) for s in SETTINGS} == {"default"}
    assert (config.home, config.warnings, config.limits.steps) == (tmp_path, (), 60)


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(tmp_path: Path) -> None:
    written(tmp_path, "[limits]\nsteps = 1\nqueue = 2\nturns = 3\n")
    environ = {"OUTRIDER_LIMITS_STEPS": "4", "OUTRIDER_LIMITS_QUEUE": "5", "OUTRIDER_LIMITS_REPEATS": "  "}
    config = load(tmp_path, environ, {"limits.steps": "6"})
    names = ("limits.steps", "limits.queue", "limits.turns", "limits.repeats")
    assert [(config.value(name), config.source(name)) for name in names] == [
        (6, "flag"),
        (5, "environment OUTRIDER_LIMITS_QUEUE"),
        (3, "config.toml"),
        (3, "default"),
    ]


def test_every_setting_can_be_given_as_a_variable_and_the_short_names_are_the_documented_ones() -> None:
    assert len({setting.env_variable for setting in SETTINGS}) == len(SETTINGS)
    by_name = {setting.name: setting.env_variable for setting in SETTINGS}
    assert by_name["model.name"] == "OUTRIDER_MODEL"
    assert by_name["model.url"] == "OUTRIDER_MODEL_URL"
    assert by_name["runtime.name"] == "OUTRIDER_RUNTIME"


def test_the_typed_shape_and_the_registry_are_the_same_settings() -> None:
    kinds = {
        SettingKind.TEXT: str,
        SettingKind.URL: str,
        SettingKind.INTEGER: int,
        SettingKind.NUMBER: float,
        SettingKind.BOOLEAN: bool,
        SettingKind.NAMES: tuple[str, ...],
        SettingKind.FOLDERS: tuple[str, ...],
        SettingKind.SECRET: Secret,
    }
    shape = {
        f"{section}.{key}": kind
        for section, struct in get_type_hints(Config).items()
        if section in {setting.category for setting in SETTINGS}
        for key, kind in get_type_hints(struct).items()
    }
    assert shape == {s.name: kinds[s.kind] | None if s.default is None else kinds[s.kind] for s in SETTINGS}


def test_values_of_every_kind_are_read_from_variables(tmp_path: Path) -> None:
    environ = {
        "OUTRIDER_MODEL": " practice ",
        "OUTRIDER_MODEL_URL": "http://127.0.0.1:9/v1/",
        "OUTRIDER_MODEL_FALLBACKS": "practice:a, practice:b",
        "OUTRIDER_LIMITS_INPUT": "2_000",
        "OUTRIDER_LIMITS_SPEND": "0.5",
        "OUTRIDER_CHAT_MARKDOWN": "off",
    }
    config = load(tmp_path, environ)
    assert (config.model.name, config.model.url) == ("practice", "http://127.0.0.1:9/v1")
    assert config.model.fallbacks == ("practice:a", "practice:b")
    assert (config.limits.input, config.limits.spend, config.chat.markdown) == (2000, 0.5, False)


def test_a_model_may_stand_at_the_top_of_the_file_as_a_plain_string(tmp_path: Path) -> None:
    written(tmp_path, 'model = "practice"\nruntime = "native"\n')
    config = load(tmp_path, {})
    assert (config.model.name, config.source("model"), config.source("runtime")) == (
        "practice",
        "config.toml",
        "config.toml",
    )


def test_the_home_is_the_one_that_is_named_else_a_folder_in_the_persons_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_home({}) == tmp_path / ".outrider"
    assert find_home({"OUTRIDER_HOME": " "}) == tmp_path / ".outrider"
    assert find_home({"OUTRIDER_HOME": "~/other/../mine"}) == tmp_path / "mine"
    assert load(environ={"OUTRIDER_HOME": "~/mine"}).home == tmp_path / "mine"


def test_broken_toml_is_told_with_file_line_and_reason(tmp_path: Path) -> None:
    path = written(tmp_path, "[limits]\nsteps = \n")
    assert refusal(tmp_path) == f"{path}: line 2: Invalid value"
    written(tmp_path, "[limits]\nsteps = [1,")
    assert refusal(tmp_path) == f"{path}: end of file: Invalid value"


def test_an_unknown_key_is_told_with_the_nearest_known_one(tmp_path: Path) -> None:
    path = written(tmp_path, "[limits]\nstep = 3\n")
    assert refusal(tmp_path) == f"{path}: no setting is called limits.step; did you mean limits.steps?"
    written(tmp_path, '"a\\nb" = 3\n')
    assert refusal(tmp_path) == f"{path}: no setting is called 'a\\nb'"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("limits.steps = 0", "limits.steps = 0 is not valid; allowed: a whole number from 1 to 10_000"),
        ('limits.steps = "9"', "limits.steps = '9' is not valid; allowed: a whole number from 1 to 10_000"),
        ("limits.steps = true", "limits.steps = True is not valid; allowed: a whole number from 1 to 10_000"),
        ("limits.spend = nan", "limits.spend = nan is not valid; allowed: a number, at least 0"),
        ("limits.spend = -1", "limits.spend = -1.0 is not valid; allowed: a number, at least 0"),
        ("chat.markdown = 1", "chat.markdown = 1 is not valid; allowed: true or false"),
        ('log.level = "loud"', "log.level = 'loud' is not valid; allowed: debug or info or warning or error"),
        ("model.fallbacks = [1]", "model.fallbacks = [1] is not valid; allowed: a list of names"),
        (
            'sandbox.read = ["tools"]',
            "sandbox.read = ['tools'] is not valid; allowed: a list of folders, each beginning with / or ~",
        ),
        ('sandbox.mode = "off"', "sandbox.mode = 'off' is not valid; allowed: auto or required"),
        ("shell.timeout = 601", "shell.timeout = 601 is not valid; allowed: a whole number from 1 to 600"),
        ('model.name = "a\\nb"', "model.name = 'a\\nb' is not valid; allowed: text"),
        ("runtime.name = 1", "runtime.name = 1 is not valid; allowed: text"),
        ("model.key = 17", "model.key is not valid; allowed: env:NAME, file:PATH, or the secret itself"),
        (
            'model.url = "http://me:pass@host/v1"',
            "model.url is not valid; allowed: an http:// or https:// address without a name or password in it",
        ),
    ],
)
def test_a_bad_value_is_told_with_file_key_and_what_is_allowed(tmp_path: Path, text: str, told: str) -> None:
    path = written(tmp_path, text)
    assert refusal(tmp_path) == f"{path}: {told}"


def test_a_bad_value_in_a_variable_or_a_flag_names_it(tmp_path: Path) -> None:
    allowed = "is not valid; allowed: a whole number from 1 to 10_000"
    assert (
        refusal(tmp_path, {"OUTRIDER_LIMITS_STEPS": "many"})
        == f"OUTRIDER_LIMITS_STEPS: limits.steps = 'many' {allowed}"
    )
    assert refusal(tmp_path, {}, {"limits.steps": "-1"}) == f"flag: limits.steps = -1 {allowed}"
    assert refusal(tmp_path, {}, {"modl": "x"}) == "no setting is called modl; did you mean model?"


def test_an_unknown_variable_is_a_warning_and_our_other_variables_are_left_alone(tmp_path: Path) -> None:
    environ = dict.fromkeys(("OUTRIDER_HOME", "OUTRIDER_FAIL", "OUTRIDER_API_KEY", "OUTRIDER_REMOTE_URL"), "x")
    config = load(
        tmp_path, environ | {"OUTRIDER_LIMIT_STEPS": "9", "OUTRIDER_MODEL_NAME": "x", "OUTRIDER_QQ": "1", "OTHER": "1"}
    )
    assert config.warnings == (
        "OUTRIDER_LIMIT_STEPS is no setting; did you mean OUTRIDER_LIMITS_STEPS?",
        "OUTRIDER_MODEL_NAME is no setting; did you mean OUTRIDER_MODEL?",
        "OUTRIDER_QQ is no setting",
    )


def test_folders_are_absolute_paths_and_a_tilde_is_the_persons_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / ".outrider"
    config = load(home, {"OUTRIDER_SANDBOX_READ": "~/.cargo/, /opt/../usr/share"})
    assert config.sandbox.read == (str(tmp_path / ".cargo"), "/usr/share")
    assert config.display_value("sandbox.read") == f"{tmp_path}/.cargo, /usr/share"


@pytest.mark.parametrize("folder", ["~", "/", "~/.outrider", "~/.outrider/logs", "~/.outrider/workspaces", "~/link"])
def test_no_folder_from_which_our_own_files_can_be_reached_is_opened_to_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / ".outrider"
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    path = written(home, f'sandbox.read = ["/opt", "{folder}"]\n')
    reason = f"Outrider's own files in {home} can be reached from {Path(folder).expanduser()}; name another folder"
    assert refusal(home) == f"{path}: sandbox.read: {reason}"
    path.unlink()
    assert refusal(home, {"OUTRIDER_SANDBOX_READ": folder}) == f"OUTRIDER_SANDBOX_READ: sandbox.read: {reason}"
    assert load(home, {"OUTRIDER_SANDBOX_READ": "~/.outrider/workspaces/a"}).sandbox.read == (f"{home}/workspaces/a",)


def test_a_home_of_nobody_is_no_absolute_path(tmp_path: Path) -> None:
    told = "OUTRIDER_SANDBOX_READ: sandbox.read: ~no-such-person/bin is not an absolute path"
    assert refusal(tmp_path, {"OUTRIDER_SANDBOX_READ": "~no-such-person/bin"}) == told


def test_a_file_that_is_no_text_or_cannot_be_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"# fine\n\xff\n")
    assert refusal(tmp_path) == f"{path}: line 2: is not UTF-8"
    path.unlink()
    path.mkdir()
    assert refusal(tmp_path) == f"{path}: cannot be read: Is a directory"


@given(content=st.text() | st.text(alphabet='[]{}".=\n#123xabcmodelikyts ').map(lambda text: "model." + text))
def test_whatever_is_in_the_file_it_loads_or_is_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, content: str
) -> None:
    home = tmp_path_factory.mktemp("home")
    (home / "config.toml").write_text(content, encoding="utf-8", errors="ignore", newline="")
    try:
        load(home, {})
    except Refused as refused:
        assert "\n" not in str(refused)  # noqa: PT017


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, "[" * 5000], ids=["long", "hexadecimal", "deep"])
def test_a_monstrous_value_is_refused_in_words(tmp_path: Path, number: str) -> None:
    path = written(tmp_path, f"limits.spend = {number}\n")
    assert refusal(tmp_path).startswith(f"{path}: ")


def test_the_page_of_settings_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert page.read_text(encoding="utf-8") == render_page(), (
        "run: python -m outrider.config.page > docs/configuration.md"
    )
