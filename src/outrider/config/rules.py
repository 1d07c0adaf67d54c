"""Parser of approval rules: the `[[rules]]` tables of config.toml, checked strictly."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast, get_args

from msgspec import Struct

from outrider.config.environment import absolute_path, check_folder
from outrider.config.schema import did_you_mean, printable_name
from outrider.config.setting_values import quote_value
from outrider.core.approvals import HOST, NETWORK, Rule, Verdict, simple_argv
from outrider.core.errors import Refused
from outrider.core.text import plural

_VERDICTS: tuple[str, ...] = get_args(Verdict)
_PATH_NEEDS = ("read:", "write:")
_TOOL_NAME = re.compile(r"\*|[\w./:-]+")
_ALLOWED = {
    "verdict": f"{', '.join(_VERDICTS[:-1])} or {_VERDICTS[-1]}",
    "tool": 'the name of a tool, or "*" for every tool',
    "argv": 'the first words of a command without shell syntax, such as ["git", "push"]',
    "workspace": "a folder, beginning with / or ~",
    "needs": 'a list of "network", "host", "codex", "read:PATH" and "write:PATH", each path beginning with / or ~',
}


def parse_rules(tables: object, path: Path, home: Path) -> tuple[Rule, ...]:
    """Parse the rules of a file. Raises Refused with the file, the rule's number, the key and the allowed values."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in cast("list[object]", tables)):
        raise Refused(f"{path}: rules must be tables: write [[rules]] above each one")
    return tuple(
        _RuleParser(table, f"{path}: rule {number}", home).parse()
        for number, table in enumerate(cast("list[dict[str, Any]]", tables), 1)
    )


def ineffective_rule_warnings(rules: Iterable[Rule]) -> list[str]:
    """Warnings about rules that have no effect."""
    return [
        f'rule {number} has no effect: it allows only what needs no approval; add, for example, needs = ["network"]'
        for number, rule in enumerate(rules, 1)
        if rule.verdict == "allow" and not rule.needs
    ]


def count_rules(rules: Sequence[Rule]) -> str:
    return plural(len(rules), "rule") if rules else "none"


class _RuleParser(Struct, frozen=True):
    """Parses one table into a rule."""

    table: dict[str, Any]
    where: str
    home: Path

    def parse(self) -> Rule:
        for key in self.table:
            if key not in _ALLOWED:
                raise Refused(f"{self.where}: there is no key {printable_name(key)}{did_you_mean(key, _ALLOWED)}")
        if "verdict" not in self.table:
            raise Refused(f"{self.where}: verdict is missing; allowed: {_ALLOWED['verdict']}")
        verdict = cast("Verdict", self._text("verdict", lambda text: text in _VERDICTS))
        needs = tuple(self._need(need) for need in self._texts("needs"))
        if needs and verdict != "allow":
            raise Refused(
                f'{self.where}: needs is for verdict = "allow" only; {verdict} applies to whatever a call needs'
            )
        workspace = self._text("workspace", lambda text: not text or bool(absolute_path(text)))
        return Rule(
            verdict=verdict,
            tool=self._text("tool", lambda text: bool(_TOOL_NAME.fullmatch(text)), "*"),
            argv=self._argv(),
            workspace=os.path.realpath(absolute_path(workspace)) if workspace else "",
            needs=needs,
        )

    def _text(self, key: str, is_good: Callable[[str], bool], default: str = "") -> str:
        value = self.table.get(key, default)
        if not isinstance(value, str) or not value.isprintable() or not is_good(value):
            raise self._invalid(key, value, _VERDICTS if key == "verdict" else ())
        return value

    def _texts(self, key: str) -> list[str]:
        value = self.table.get(key, [])
        if not isinstance(value, list):
            raise self._invalid(key, value)
        for item in cast("list[object]", value):
            if not isinstance(item, str) or not item.isprintable():
                raise self._invalid(key, item)
        return cast("list[str]", value)

    def _argv(self) -> tuple[str, ...]:
        words = self._texts("argv")
        for word in words:
            if simple_argv(word) != (word,):  # No command that a rule can match contains such a word.
                raise self._invalid("argv", word)
        return tuple(words)

    def _need(self, text: str) -> str:
        if text in (HOST, NETWORK, "codex"):
            return text
        reach = next((reach for reach in _PATH_NEEDS if text.startswith(reach)), "")
        if not reach or not absolute_path(text.removeprefix(reach)):
            raise self._invalid("needs", text, () if reach else (HOST, NETWORK, *_PATH_NEEDS))
        return reach + check_folder(text.removeprefix(reach), self.home, f"{self.where}: needs")

    def _invalid(self, key: str, value: object, names: Iterable[str] = ()) -> Refused:
        close = did_you_mean(value, names) if isinstance(value, str) else ""
        return Refused(f"{self.where}: {key} = {quote_value(value)} is not valid; allowed: {_ALLOWED[key]}{close}")
