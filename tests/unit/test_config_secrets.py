"""Secrets: where they may be stored, and that nothing reveals them."""

from pathlib import Path

import pytest

from outrider.config.edit import set_value
from outrider.config.load import load
from outrider.config.schema import Config
from outrider.core.errors import Refused

SECRET = "sk-do-not-tell"


def write_config(home: Path, text: str, mode: int = 0o600) -> Path:
    path = home / "config.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def key_and_display(config: Config) -> tuple[str, str]:
    return config.model.key.reveal(), config.display_value("model.key")


def test_a_key_is_read_from_the_variable_or_the_file_it_refers_to(tmp_path: Path) -> None:
    path = tmp_path / "openai"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    write_config(tmp_path, '[model]\nkey = "env:MY_KEY"\n', 0o644)
    assert key_and_display(load(tmp_path, {"MY_KEY": SECRET})) == (SECRET, "set (from env:MY_KEY)")
    write_config(tmp_path, f'[model]\nkey = "file:{path}"\n', 0o644)
    assert key_and_display(load(tmp_path, {})) == (SECRET, f"set (from file:{path})")


def test_a_key_variable_holds_the_key_or_a_reference(tmp_path: Path) -> None:
    environ = {"OUTRIDER_MODEL_KEY": SECRET}
    assert key_and_display(load(tmp_path, environ)) == (SECRET, "set (from environment OUTRIDER_MODEL_KEY)")
    environ = {"OUTRIDER_MODEL_KEY": "env:OTHER", "OTHER": SECRET}
    assert key_and_display(load(tmp_path, environ)) == (SECRET, "set (from env:OTHER)")
    assert key_and_display(load(tmp_path, {})) == ("", "not set")


def test_a_key_in_the_file_is_accepted_only_when_others_cannot_read_it(tmp_path: Path) -> None:
    path = write_config(tmp_path, f'[model]\nkey = "{SECRET}"\n')
    assert key_and_display(load(tmp_path, {})) == (SECRET, "set (from config.toml)")
    path.chmod(0o640)
    with pytest.raises(Refused) as refused:
        load(tmp_path, {})
    advice = "run chmod 600 on it, or use env:NAME or file:PATH"
    assert str(refused.value) == f"{path}: contains model.key, but other users can read the file; {advice}"


def test_a_key_whose_variable_is_unset_counts_as_unset_and_causes_a_warning(tmp_path: Path) -> None:
    config = load(tmp_path, {"OUTRIDER_MODEL_KEY": "env:MY_KEY", "MY_KEY": " "})
    assert key_and_display(config) == ("", "not set (from env:MY_KEY)")
    assert config.warnings == ("model.key: env:MY_KEY is not set in the environment",)


def test_a_key_file_that_is_shared_missing_or_empty_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"

    def refusal() -> str:
        with pytest.raises(Refused) as refused:
            load(tmp_path, {"OUTRIDER_MODEL_KEY": f"file:{path}"})
        return str(refused.value)

    assert refusal() == f"model.key: {path} cannot be read: No such file or directory"
    path.write_text(SECRET)
    path.chmod(0o644)
    assert refusal() == f"model.key: other users can read {path}; run chmod 600 on it"
    path.chmod(0o600)
    path.write_text("\n")
    assert refusal() == f"model.key: {path} is empty"
    path.write_bytes(b"\xff\xfe")
    assert refusal() == f"model.key: {path} is not text"


def test_nothing_printable_contains_the_key(tmp_path: Path) -> None:
    config = load(tmp_path, {"OUTRIDER_MODEL_KEY": SECRET, "OPENAI_API_KEY": SECRET})
    assert SECRET not in f"{config!r} {config.display_value('model.key')} {config.warnings} {config.model.key}"


def test_no_error_contains_a_secret(tmp_path: Path) -> None:
    write_config(tmp_path, f'model.key = ["{SECRET}"]\n')
    with pytest.raises(Refused) as refused:
        load(tmp_path, {})
    assert SECRET not in str(refused.value)
    with pytest.raises(Refused) as refused:
        set_value(tmp_path, "model.key", f"{SECRET}\n{SECRET}")
    assert SECRET not in str(refused.value)
