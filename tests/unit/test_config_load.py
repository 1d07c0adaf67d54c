"""Loading settings: which source takes precedence, and how errors are reported."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from outrider.config.load import find_home, load
from outrider.config.schema import SETTINGS, Section, read_section
from outrider.core.errors import Refused


def write_config(home: Path, text: str, mode: int = 0o600) -> Path:
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


def test_without_configuration_every_value_is_the_default(tmp_path: Path) -> None:
    config = load(tmp_path, {})
    assert {s.name: config.value(s.name) for s in SETTINGS if not s.is_secret} == {
        s.name: s.default for s in SETTINGS if not s.is_secret
    }
    assert {config.source(s.name) for s in SETTINGS} == {"default"}
    assert (config.home, config.warnings, config.limits.steps) == (tmp_path, (), 60)


def test_flags_take_precedence_over_the_environment_the_file_and_the_defaults(tmp_path: Path) -> None:
    write_config(tmp_path, "[limits]\nsteps = 1\nqueue = 2\nturns = 3\n")
    environ = {"OUTRIDER_LIMITS_STEPS": "4", "OUTRIDER_LIMITS_QUEUE": "5", "OUTRIDER_LIMITS_REPEATS": "  "}
    config = load(tmp_path, environ, {"limits.steps": "6"})
    names = ("limits.steps", "limits.queue", "limits.turns", "limits.repeats")
    assert [(config.value(name), config.source(name)) for name in names] == [
        (6, "flag"),
        (5, "environment OUTRIDER_LIMITS_QUEUE"),
        (3, "config.toml"),
        (3, "default"),
    ]


def test_every_setting_has_a_variable_of_its_own_and_an_alias_shortens_it() -> None:
    assert len({setting.env_variable for setting in SETTINGS}) == len(SETTINGS)
    by_name = {setting.name: setting.env_variable for setting in SETTINGS}
    assert by_name["model.name"] == "OUTRIDER_MODEL"
    assert by_name["model.url"] == "OUTRIDER_MODEL_URL"
    assert by_name["runtime.name"] == "OUTRIDER_RUNTIME"


class _NoHelp(Section, frozen=True):
    size: Annotated[int, Meta(ge=1)] = 1


class _NoMeta(Section, frozen=True):
    size: int = 1


class _UnknownType(Section, frozen=True):
    size: Annotated[complex, Meta(description="The size.")] = 1j


@pytest.mark.parametrize("section", [_NoHelp, _NoMeta, _UnknownType])
def test_a_field_without_help_or_of_an_unknown_type_cannot_be_a_setting(section: type[Section]) -> None:
    with pytest.raises(TypeError, match=r"^test\.size: a setting needs Annotated"):
        list(read_section("test", section))


def test_values_of_every_kind_are_parsed_from_variables(tmp_path: Path) -> None:
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


def test_an_alias_can_be_set_at_the_top_of_the_file(tmp_path: Path) -> None:
    write_config(tmp_path, 'model = "practice"\nruntime = "native"\n')
    config = load(tmp_path, {})
    assert (config.model.name, config.source("model"), config.source("runtime")) == (
        "practice",
        "config.toml",
        "config.toml",
    )


def test_the_home_is_the_configured_folder_or_one_in_the_users_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_home({}) == tmp_path / ".outrider"
    assert find_home({"OUTRIDER_HOME": " "}) == tmp_path / ".outrider"
    assert find_home({"OUTRIDER_HOME": "~/other/../mine"}) == tmp_path / "mine"
    assert load(environ={"OUTRIDER_HOME": "~/mine"}).home == tmp_path / "mine"


def test_invalid_toml_is_refused_with_file_line_and_reason(tmp_path: Path) -> None:
    path = write_config(tmp_path, "[limits]\nsteps = \n")
    assert refusal(tmp_path) == f"{path}: line 2: Invalid value"
    write_config(tmp_path, "[limits]\nsteps = [1,")
    assert refusal(tmp_path) == f"{path}: end of file: Invalid value"


def test_an_unknown_key_is_refused_with_the_closest_match(tmp_path: Path) -> None:
    path = write_config(tmp_path, "[limits]\nstep = 3\n")
    assert refusal(tmp_path) == f"{path}: there is no setting limits.step; did you mean limits.steps?"
    write_config(tmp_path, '"a\\nb" = 3\n')
    assert refusal(tmp_path) == f"{path}: there is no setting 'a\\nb'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limits.steps = 0", "limits.steps = 0 is not valid; allowed: a whole number from 1 to 10,000"),
        ('limits.steps = "9"', "limits.steps = '9' is not valid; allowed: a whole number from 1 to 10,000"),
        ("limits.steps = true", "limits.steps = True is not valid; allowed: a whole number from 1 to 10,000"),
        ("limits.spend = nan", "limits.spend = nan is not valid; allowed: a number, at least 0"),
        ("limits.spend = -1", "limits.spend = -1.0 is not valid; allowed: a number, at least 0"),
        ("chat.markdown = 1", "chat.markdown = 1 is not valid; allowed: true or false"),
        ('log.level = "loud"', "log.level = 'loud' is not valid; allowed: debug, info, warning or error"),
        ("model.fallbacks = [1]", "model.fallbacks = [1] is not valid; allowed: a list of names"),
        (
            'sandbox.read = ["tools"]',
            "sandbox.read = ['tools'] is not valid; allowed: a list of folders, each beginning with / or ~",
        ),
        (
            'sandbox.mode = "none"',
            "sandbox.mode = 'none' is not valid; allowed: auto, required, bubblewrap, landlock or off",
        ),
        ("shell.timeout = 601", "shell.timeout = 601 is not valid; allowed: a whole number from 1 to 600"),
        ('model.name = "a\\nb"', "model.name = 'a\\nb' is not valid; allowed: text"),
        ("runtime.name = 1", "runtime.name = 1 is not valid; allowed: text"),
        ("model.key = 17", "model.key is not valid; allowed: env:NAME, file:PATH, or the secret itself"),
        (
            'model.url = "http://me:pass@host/v1"',
            "model.url is not valid; allowed: an http:// or https:// URL without a user name or password",
        ),
    ],
)
def test_an_invalid_value_is_refused_with_file_key_and_allowed_values(tmp_path: Path, text: str, message: str) -> None:
    path = write_config(tmp_path, text)
    assert refusal(tmp_path) == f"{path}: {message}"


def test_an_invalid_value_in_a_variable_or_a_flag_is_refused_with_its_name(tmp_path: Path) -> None:
    allowed = "is not valid; allowed: a whole number from 1 to 10,000"
    assert (
        refusal(tmp_path, {"OUTRIDER_LIMITS_STEPS": "many"})
        == f"OUTRIDER_LIMITS_STEPS: limits.steps = 'many' {allowed}"
    )
    assert refusal(tmp_path, {}, {"limits.steps": "-1"}) == f"flag: limits.steps = -1 {allowed}"
    assert refusal(tmp_path, {}, {"modl": "x"}) == "there is no setting modl; did you mean model?"


def test_an_unknown_variable_causes_a_warning_but_other_variables_of_outrider_do_not(tmp_path: Path) -> None:
    environ = dict.fromkeys(("OUTRIDER_HOME", "OUTRIDER_FAIL", "OUTRIDER_API_KEY"), "x")
    config = load(
        tmp_path, environ | {"OUTRIDER_LIMIT_STEPS": "9", "OUTRIDER_MODEL_NAME": "x", "OUTRIDER_QQ": "1", "OTHER": "1"}
    )
    assert config.warnings == (
        "OUTRIDER_LIMIT_STEPS is not a setting; did you mean OUTRIDER_LIMITS_STEPS?",
        "OUTRIDER_MODEL_NAME is not a setting; did you mean OUTRIDER_MODEL?",
        "OUTRIDER_QQ is not a setting",
    )


def test_commands_without_a_sandbox_cause_a_warning_at_every_start(tmp_path: Path) -> None:
    warning = "sandbox.mode is off: commands run without a sandbox and without a question"
    assert load(tmp_path, {"OUTRIDER_SANDBOX_MODE": "off"}).warnings == (warning,)
    assert load(tmp_path, {"OUTRIDER_SANDBOX_MODE": "landlock"}).warnings == ()


def test_folders_become_absolute_paths_and_a_tilde_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / ".outrider"
    config = load(home, {"OUTRIDER_SANDBOX_READ": "~/.cargo/, /opt/../usr/share"})
    assert config.sandbox.read == (str(tmp_path / ".cargo"), "/usr/share")
    assert config.display_value("sandbox.read") == f"{tmp_path}/.cargo, /usr/share"


@pytest.mark.parametrize("folder", ["~", "/", "~/.outrider", "~/.outrider/logs", "~/.outrider/workspaces", "~/link"])
def test_a_folder_that_gives_access_to_outriders_own_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / ".outrider"
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    path = write_config(home, f'sandbox.read = ["/opt", "{folder}"]\n')
    reason = f"{Path(folder).expanduser()} would give access to Outrider's own files in {home}; name another folder"
    assert refusal(home) == f"{path}: sandbox.read: {reason}"
    path.unlink()
    assert refusal(home, {"OUTRIDER_SANDBOX_READ": folder}) == f"OUTRIDER_SANDBOX_READ: sandbox.read: {reason}"
    assert load(home, {"OUTRIDER_SANDBOX_READ": "~/.outrider/workspaces/a"}).sandbox.read == (f"{home}/workspaces/a",)


def test_the_home_folder_of_an_unknown_user_is_not_an_absolute_path(tmp_path: Path) -> None:
    message = "OUTRIDER_SANDBOX_READ: sandbox.read: ~no-such-person/bin is not an absolute path"
    assert refusal(tmp_path, {"OUTRIDER_SANDBOX_READ": "~no-such-person/bin"}) == message


def test_a_file_that_is_not_text_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"# fine\n\xff\n")
    assert refusal(tmp_path) == f"{path}: line 2: not valid UTF-8"
    path.unlink()
    path.mkdir()
    assert refusal(tmp_path) == f"{path}: cannot be read: Is a directory"


@given(content=st.text() | st.text(alphabet='[]{}".=\n#123xabcmodelikyts ').map(lambda text: "model." + text))
def test_any_file_content_is_loaded_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: str
) -> None:
    home = tmp_path_factory.mktemp("home")
    (home / "config.toml").write_text(content, encoding="utf-8", errors="ignore", newline="")
    try:
        load(home, {})
    except Refused as refused:
        assert "\n" not in str(refused)  # noqa: PT017


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, "[" * 5000], ids=["long", "hexadecimal", "deep"])
def test_an_oversized_value_is_refused(tmp_path: Path, number: str) -> None:
    path = write_config(tmp_path, f"limits.spend = {number}\n")
    assert refusal(tmp_path).startswith(f"{path}: ")


def test_the_reference_of_settings_is_up_to_date() -> None:
    docs = Path(__file__).parents[2] / "docs"
    generated = subprocess.run([sys.executable, docs / "generate.py"], capture_output=True, text=True, check=True)
    assert (docs / "configuration.md").read_text(encoding="utf-8") == generated.stdout, "run: ./dev docs"


def test_a_remote_key_that_would_be_sent_in_clear_to_another_machine_causes_a_warning(tmp_path: Path) -> None:
    def warnings(url: str) -> tuple[str, ...]:
        return load(tmp_path, {"OUTRIDER_REMOTE_URL": url, "OUTRIDER_REMOTE_KEY": "k-1234567890"}).warnings

    assert [bool(warnings(f"{url}/")) for url in ("http://agent.example", "HTTP://10.0.0.1:8642")] == [True, True]
    fine = ("https://agent.example", "http://127.0.0.1:8642", "http://localhost", "http://[::1]:80")
    assert [warnings(url) for url in fine] == [()] * 4
    assert load(tmp_path, {"OUTRIDER_REMOTE_URL": "http://agent.example"}).warnings == ()
