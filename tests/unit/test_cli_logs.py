"""The log: JSON lines without secrets, private, and bounded in size."""

import json
import logging
import sys
from pathlib import Path

import pytest

from outrider.cli.logging import log_path, open_log_handler
from outrider.config.redact import Redactor


def record(message: str, **extra: object) -> logging.LogRecord:
    log_record = logging.LogRecord("outrider.test", logging.ERROR, "here.py", 1, message, (), None)
    vars(log_record).update(extra)
    return log_record


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_a_line_has_time_logger_and_message_and_never_a_secret(home: Path) -> None:
    log = open_log_handler(home, Redactor(["sk-very-secret", ""]).redact)
    try:
        raise ValueError("refused sk-very-secret")
    except ValueError:
        log.handle(record("asked with sk-very-secret\nand \udc80", session="s1", exc_info=sys.exc_info()))
    log.close()
    line = json.loads(log_path(home).read_text())
    assert line.pop("at").endswith("Z")
    assert line.pop("traceback").endswith("ValueError: refused %secret%")
    message = "asked with %secret%\nand ?"
    assert line == {"level": "error", "logger": "outrider.test", "message": message, "session": "s1"}


def test_the_first_line_creates_the_log_for_its_owner_alone(home: Path) -> None:
    log = open_log_handler(home)
    assert not home.exists()
    log.handle(record("one"))
    log.close()
    assert [path.stat().st_mode & 0o777 for path in (home, home / "logs", log_path(home))] == [0o700, 0o700, 0o600]


def test_a_full_log_is_rotated_and_three_old_files_are_kept(home: Path) -> None:
    log = open_log_handler(home, max_bytes=1_000)
    for _ in range(100):
        log.handle(record("x" * 100))
    log.close()
    names = sorted(path.name for path in (home / "logs").iterdir())
    assert names == ["outrider.log", "outrider.log.1", "outrider.log.2", "outrider.log.3"]
    assert max(path.stat().st_size for path in (home / "logs").iterdir()) <= 1_000
    assert {path.stat().st_mode & 0o777 for path in (home / "logs").iterdir()} == {0o600}
