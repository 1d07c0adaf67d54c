"""What the practice model remembers of its session: which files and which task it was about last."""

from collections.abc import Generator

from msgspec import Struct

from outrider.core.events import Result
from outrider.models.practice.outcomes import parse_outcome
from outrider.models.practice.results import parse_listing
from outrider.models.practice.steps import Path, Ref
from outrider.models.scripted_reply import ScriptedCall

Doing = Generator[ScriptedCall, Result, str]
"""Yields calls, is sent their results, returns words."""


class Recall(Struct):
    """For words like "it", "the first one" and "the last task"."""

    path: str = ""
    files: list[str] = []
    task: str = ""
    ended: set[str] = set()
    """Tasks whose end this turn has been told of."""
    answered: set[str] = set()
    """Tasks whose end was already said in this turn."""

    def take_in(self, wanted: ScriptedCall, result: Result) -> None:
        if wanted.tool in ("shell", "tasks"):
            outcome = parse_outcome(result.text)
            if outcome and outcome.task and (wanted.tool == "tasks" or outcome.is_open):
                self.task = outcome.task
            return
        path = wanted.args.get("path")
        if not isinstance(path, str):
            return
        if wanted.tool == "list" and not result.failed:
            listing = parse_listing(path, result.text)
            self.files = listing.files if listing else []
        elif wanted.tool in ("read", "write", "edit"):
            self.path = path

    def find(self, path: Path) -> str | None:
        match path:
            case Ref(which=int(which)):
                return self.files[which] if -len(self.files) <= which < len(self.files) else None
            case Ref():
                return self.path or (self.files[0] if len(self.files) == 1 else None)
            case str():
                return path
