"""The environment of a command outside any sandbox: a few variables, never a key."""

import os

from hypothesis import given
from hypothesis import strategies as st

from outrider.config.environment import child_environment

USUAL = {"HOME": "/people/me", "LANG": "de_DE.UTF-8", "LC_TIME": "C", "SHELL": "/bin/zsh", "TZ": "Europe/Berlin"}


def test_a_command_gets_the_usual_variables_and_a_dumb_terminal() -> None:
    environ = USUAL | {"PATH": "/opt/bin:/bin", "TERM": "xterm-256color", "USER": "me", "LOGNAME": "me", "TMPDIR": "/t"}
    assert child_environment(environ) == environ | {"TERM": "dumb"}


def test_no_other_variable_is_passed_on() -> None:
    keys = (
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "LC_API_KEY",
        "OUTRIDER_MODEL_KEY",
        "https_proxy",
    )
    others = (
        "OUTRIDER_HOME",
        "SSH_AUTH_SOCK",
        "LD_PRELOAD",
        "PYTHONPATH",
        "BASH_ENV",
        "ENV",
        "XDG_RUNTIME_DIR",
        "home",
    )
    assert child_environment(USUAL | dict.fromkeys((*keys, *others), "x")) == USUAL | {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "TERM": "dumb",
    }


def test_programs_are_never_searched_for_in_the_workspace() -> None:
    assert child_environment({"PATH": ".:/usr/bin::bin:~/bin:/bin:"})["PATH"] == "/usr/bin:/bin"
    assert child_environment({"PATH": ".:"})["PATH"] == "/usr/local/bin:/usr/bin:/bin"


def test_an_empty_environment_and_empty_values_are_accepted() -> None:
    assert child_environment({"LANG": "", "HOME": ""}) == {"PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "dumb"}


def test_the_default_is_the_environment_of_this_process() -> None:
    assert child_environment() == child_environment(dict(os.environ))


_KEYS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "OUTRIDER_")


@given(st.dictionaries(st.text(max_size=12) | st.sampled_from(_KEYS).map(lambda word: f"LC_{word}S"), st.text()))
def test_no_variable_that_looks_like_a_key_is_passed_on(environ: dict[str, str]) -> None:
    passed = child_environment(environ)
    assert [name for name in passed if any(word in name.upper() for word in _KEYS)] == []
    assert all(environ.get(name) == value for name, value in passed.items() if name not in ("PATH", "TERM"))
