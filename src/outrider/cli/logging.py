"""The log: JSON lines in `logs/outrider.log` of the home, readable by its owner alone, secrets redacted."""

import logging
import time
from collections.abc import Callable
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

import msgspec

from outrider.cli.output import one_line
from outrider.config.redact import build_redactor
from outrider.config.schema import Config
from outrider.system.files import touch_private

_MAX_FILE_BYTES = 2_000_000
_BACKUP_COUNT = 3
_MAX_MESSAGE_CHARS = 64_000
"""Characters of one message, so that a huge error does not fill the disk."""
Redact = Callable[[str], str]


def log_path(home: Path) -> Path:
    return home / "logs" / "outrider.log"


def start_logging(home: Path, config: Config | None = None) -> Path:
    """Send all log records to the log of this home. The first record creates the file."""
    path = log_path(home)
    redact = build_redactor(config).redact if config else str
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    # Libraries log warnings and errors; our own level is a setting.
    logging.basicConfig(handlers=[open_log_handler(home, redact)], level=logging.WARNING, force=True)
    logging.getLogger("outrider").setLevel((config.log.level if config else "info").upper())
    return path


def open_log_handler(home: Path, redact: Redact = str, max_bytes: int = _MAX_FILE_BYTES) -> logging.Handler:
    """A handler for the log of this home. It redacts secrets and rotates full files."""
    handler = _PrivateLogHandler(
        log_path(home),
        maxBytes=max_bytes,
        backupCount=_BACKUP_COUNT,
        encoding="utf-8",
        delay=True,
        errors="backslashreplace",
    )
    handler.setFormatter(_JsonFormatter(redact))
    return handler


def log_to_stderr(redact: Redact = str) -> None:
    """Print log records on stderr too, as short lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(_TerminalFormatter(redact))
    logging.getLogger().addHandler(handler)


def format_log_line(at: str, level: str, logger: str, message: str) -> str:
    """A log record on one line; the level only where it is not `info`."""
    prefix = "" if level == "info" else f"{level}: "
    return one_line(f"{at} {logger.removeprefix('outrider.')}: {prefix}{message}", 1_000)


class _TerminalFormatter(logging.Formatter):
    """Short lines for a terminal: the time without the date, and no traceback."""

    def __init__(self, redact: Redact) -> None:
        super().__init__()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        return format_log_line(at, record.levelname.lower(), record.name, self._redact(record.getMessage()))


class _PrivateLogHandler(RotatingFileHandler):
    """Creates the file and its folders, readable by their owner alone, when the first record is written."""

    def _open(self) -> TextIOWrapper:
        path = Path(self.baseFilename)
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        touch_private(path)
        return super()._open()


class _JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger and message; session and traceback where there are any."""

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
