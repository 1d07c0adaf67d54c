"""Versions of Codex: the oldest that is supported, and the newest that was tested. Pure."""

import re

from msgspec import Struct


class CodexVersion(Struct, frozen=True, order=True):
    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


OLDEST_SUPPORTED = CodexVersion(0, 158)
NEWEST_TESTED = CodexVersion(0, 166)
UPDATE = "update Codex: `npm install -g @openai/codex@latest`, or `pip install -U openai-codex-cli-bin`"
_UNKNOWN = CodexVersion(0, 0)
"""What Codex reports when it was built from its sources."""
_NUMBER = re.compile(r"(?<![\d.])(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?")


def parse_version(text: str) -> CodexVersion | None:
    """The first version in a text, such as `outrider/0.166.0 (Debian 12; x86_64)`; None when there is none."""
    match = _NUMBER.search(text.partition(" ")[0]) or _NUMBER.search(text)
    version = CodexVersion(int(match[1]), int(match[2]), int(match[3] or 0)) if match else _UNKNOWN
    return None if version == _UNKNOWN else version


def too_old(version: CodexVersion | None) -> str:
    """Why this version cannot be used; empty when it can. One that is not known is not refused."""
    if version is None or version >= OLDEST_SUPPORTED:
        return ""
    return (
        f"Codex {version} is too old: Outrider needs {OLDEST_SUPPORTED} or newer. Older versions can run an allowed "
        "command again outside of the sandbox, or let commands see your keys"
    )


def untested(version: CodexVersion | None) -> str:
    """What to know about a version with which Outrider was not tested; empty when it was."""
    if version is None:
        return f"not a known version; Outrider was tested with {OLDEST_SUPPORTED} to {NEWEST_TESTED}"
    if (version.major, version.minor) > (NEWEST_TESTED.major, NEWEST_TESTED.minor):
        return f"newer than {NEWEST_TESTED}, the newest version that Outrider was tested with"
    return ""
