"""The log: JSON lines in `logs/outrider.log` of the home, for its owner alone. Terminals see it by `show_logs`."""

import logging
import os
import time
from collections.abc import Callable
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

import msgspec

from outrider.cli.output import one_line
from outrider.config.redact import build_redactor
from outrider.config.schema import Config

_MAX_FILE_BYTES = 2_000_000
_BACKUP_COUNT = 3
_MAX_MESSAGE_CHARS = 64_000
"""Of one line, so that no error message fills the disk."""
Redact = Callable[[str], str]


def log_path(home: Path) -> Path:
    """Where the log of this home is."""
    return home / "logs" / "outrider.log"


def start_logging(home: Path, config: Config | None = None) -> Path:
    """Send everything that is logged from now on to this home's log. The file is made with its first line."""
    path = log_path(home)
    redact = build_redactor(config).redact if config else str
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    # Libraries are heard when they warn; how much we say ourselves is a setting.
    logging.basicConfig(handlers=[open_log_handler(home, redact)], level=logging.WARNING, force=True)
    logging.getLogger("outrider").setLevel((config.log.level if config else "info").upper())
    return path


def open_log_handler(home: Path, redact: Redact = str, longest: int = _MAX_FILE_BYTES) -> logging.Handler:
    """Writes what it is given to this home's log, secrets left out; moves a full file aside and keeps a few."""
    file = _PrivateLogHandler(log_path(home), maxBytes=longest, backupCount=_BACKUP_COUNT, encoding="utf-8", delay=True)
    file.setFormatter(_JsonFormatter(redact))
    return file


def log_to_stderr(redact: Redact = str) -> None:
    """Show short lines of what is logged on stderr too, for somebody who watches."""
    shown = logging.StreamHandler()
    shown.setFormatter(_TerminalFormatter(redact))
    logging.getLogger().addHandler(shown)


def format_log_line(at: str, level: str, logger: str, message: str) -> str:
    """When, how bad where it is, where, what; on one line."""
    where = logger.removeprefix("outrider.")
    bad = "" if level == "info" else f"{level}: "
    return one_line(f"{at} {where}: {bad}{message}", 1_000)


class _TerminalFormatter(logging.Formatter):
    """For people: the day is theirs to know, and a traceback is in the file."""

    def __init__(self, redact: Redact) -> None:
        super().__init__()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        return format_log_line(at, record.levelname.lower(), record.name, self._redact(record.getMessage()))


class _PrivateLogHandler(RotatingFileHandler):
    """Made private, with its folder, when the first line is written."""

    def _open(self) -> TextIOWrapper:
        folder = Path(self.baseFilename).parent
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return open(descriptor, "a", encoding="utf-8", errors="backslashreplace")


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: when, how bad, where, what; the session and the traceback where there are any."""

    def __init__(self, redact: Redact) -> None:
        super().__init__()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._clean(record.getMessage()),
        }
        if session := getattr(record, "session", ""):
            line["session"] = str(session)
        if record.exc_info:
            line["traceback"] = self._clean(self.formatException(record.exc_info))
        return msgspec.json.encode(line).decode()

    def _clean(self, text: str) -> str:
        return self._redact(text)[-_MAX_MESSAGE_CHARS:].encode("utf-8", "replace").decode()
