"""The log: JSON lines without secrets, private, and never larger than it may be."""

import json
import logging
import sys
from pathlib import Path

import pytest

from outrider.cli.logging import log_path, open_log_handler
from outrider.config.redact import Redactor


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("outrider.test", logging.ERROR, "here.py", 1, message, (), None)
    vars(made).update(extra)
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_a_line_says_when_where_and_what_and_never_a_secret(home: Path) -> None:
    log = open_log_handler(home, Redactor(["sk-very-secret", ""]).redact)
    try:
        raise ValueError("refused sk-very-secret")
    except ValueError:
        log.handle(record("asked with sk-very-secret\nand \udc80", session="s1", exc_info=sys.exc_info()))
    log.close()
    line = json.loads(log_path(home).read_text())
    assert line.pop("at").endswith("Z")
    assert line.pop("traceback").endswith("ValueError: refused [secret]")
    said = "asked with [secret]\nand ?"
    assert line == {"level": "error", "logger": "outrider.test", "message": said, "session": "s1"}


def test_the_log_is_made_with_its_first_line_for_its_owner_alone(home: Path) -> None:
    log = open_log_handler(home)
    assert not home.exists()
    log.handle(record("one"))
    log.close()
    assert [path.stat().st_mode & 0o777 for path in (home, home / "logs", log_path(home))] == [0o700, 0o700, 0o600]


def test_a_full_log_is_moved_aside_and_only_a_few_are_kept(home: Path) -> None:
    log = open_log_handler(home, longest=1_000)
    for _ in range(100):
        log.handle(record("x" * 100))
    log.close()
    kept = sorted(path.name for path in (home / "logs").iterdir())
    assert kept == ["outrider.log", "outrider.log.1", "outrider.log.2", "outrider.log.3"]
    assert max(path.stat().st_size for path in (home / "logs").iterdir()) <= 1_000
    assert {path.stat().st_mode & 0o777 for path in (home / "logs").iterdir()} == {0o600}
