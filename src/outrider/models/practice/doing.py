"""How the practice model does each step: a generator that yields calls, is sent their results, and returns words.

Being run again from the start with the results so far, it needs no memory of its own.
"""

from outrider.core.events import Result
from outrider.core.prompt import UNKNOWN
from outrider.models.practice.notices import told
from outrider.models.practice.phrases import ABOUT, EXAMPLES, PLUG_IN, clipped, code, counted, fenced
from outrider.models.practice.recall import Doing, Recall
from outrider.models.practice.results import Page, parse_listing, parse_matches, parse_page, summary
from outrider.models.practice.running import run, tell_tasks, tend
from outrider.models.practice.steps import (
    Appending,
    Listing,
    Noticed,
    Noting,
    Puzzled,
    Reading,
    Replacing,
    Running,
    Saying,
    Searching,
    Step,
    Talking,
    Tasks,
    Tending,
    Unable,
    Writing,
)
from outrider.models.scripted_reply import ScriptedCall

_MOST_LINES = 200
_MOST_NAMES = 100
_MOST_MATCHES = 40


def do(step: Step, recall: Recall, tools: frozenset[str]) -> Doing:
    """Do this step with these tools."""
    match step:
        case Talking() | Saying() | Noting() | Unable() | Puzzled():
            return _words(step, tools)
        case Noticed(notice=notice):
            return told(notice, recall.answered)
        case Running():
            return (yield from _with(tools, "shell", run(step, recall)))
        case Tending():
            return (yield from _with(tools, "tasks", tend(step, recall)))
        case Tasks():
            return (yield from _with(tools, "tasks", tell_tasks(step)))
        case Searching():
            path = "" if step.path == "" else recall.find(step.path)
            return _WHICH if path is None else (yield from _with(tools, "search", _search(step, path)))
        case Listing() | Reading() | Writing() | Appending() | Replacing():
            path = recall.find(step.path)
            return _WHICH if path is None else (yield from _do_to(step, path, tools))


def _words(step: Talking | Saying | Noting | Unable | Puzzled, tools: frozenset[str]) -> str:
    match step:
        case Talking(about=about):
            return _TALK[about]
        case Saying(text=text):
            return text or "…"
        case Noting(text=text):
            return f"Noted: {clipped(text)}"
        case Unable(wish=wish):
            commands = " A command might do it: `run …`." if "shell" in tools else ""
            return f"I have no tool to {wish} anything. I can list, read, search, write and edit files.{commands}"
        case Puzzled(text=text):
            return f"I did not understand {code(clipped(text))}.\n\n{ABOUT}\n\n{EXAMPLES}\n\n{PLUG_IN}"


def _do_to(step: Listing | Reading | Writing | Appending | Replacing, path: str, tools: frozenset[str]) -> Doing:
    match step:
        case Listing(counts=counts):
            return (yield from _with(tools, "list", _list(path, counts=counts)))
        case Reading():
            return (yield from _with(tools, "read", _read(step, path, "list" in tools)))
        case Writing(content=content):
            return (yield from _with(tools, "write", _write(path, content)))
        case Replacing():
            return (yield from _with(tools, "edit", _replace(step, path)))
        case Appending(content=content):
            missing = next((name for name in ("read", "edit", "write") if name not in tools), "read")
            return (yield from _with(tools, missing, _append(path, content)))


_WHICH = "I do not know which file you mean. Please name it."
_TALK = {
    "hello": f"Hello! {ABOUT}\n\n{EXAMPLES}\n\n{PLUG_IN}",
    "help": f"{ABOUT}\n\n{EXAMPLES}\n\n{PLUG_IN}",
    "self": f"{ABOUT}\n\n{PLUG_IN}",
    "mood": "I am a handful of rules and have no moods, but everything works. Say `help` for what I can do.",
    "thanks": "You are welcome.",
    "bye": "Goodbye. This session is kept; you can come back to it.",
    "model": PLUG_IN,
}


def _with(tools: frozenset[str], name: str, doing: Doing) -> Doing:
    if name in tools:
        return (yield from doing)
    doing.close()
    return f"I would need the tool {code(name)} for that, and it is not offered in this session."


def _failure(wish: str, result: Result) -> str:
    if result.text == UNKNOWN:
        return f"I do not know whether I managed to {wish}: {UNKNOWN}."
    return f"I could not {wish}: {clipped(result.text, 600)}"


def _quoted(tool: str, about: str, result: Result) -> str:
    """For an answer that could mean anything: what it is, without a claim about it."""
    lines = result.text.splitlines()[:_MOST_LINES] or ["(nothing)"]
    return f"About {code(about)} the tool {code(tool)} answered:\n\n{fenced(lines)}"


def _list(path: str, *, counts: bool) -> Doing:
    result = yield ScriptedCall("list", {"path": path})
    where = "this folder" if path == "." else code(path)
    if result.failed:
        return _failure(f"list {where}", result)
    names = parse_listing(path, result.text)
    if names is None:
        return _quoted("list", path, result)
    total = f"{counted(len(names.files), 'file')} and {counted(len(names.folders), 'folder')}"
    if counts:
        return " ".join([f"There are {total} in {where}, not counting what is in folders below.", *names.notes])
    if not names.files and not names.folders:
        return f"There is nothing in {where}."
    rows = [*(f"- {code(name + '/')}" for name in names.folders), *(f"- {code(name)}" for name in names.files)]
    more = [f"- … and {len(rows) - _MOST_NAMES} more"] if len(rows) > _MOST_NAMES else []
    return "\n".join([f"In {where} there are {total}:", "", *rows[:_MOST_NAMES], *more, *names.notes])


def _read(step: Reading, path: str, can_list: bool) -> Doing:
    args: dict[str, object] = {"path": path}
    if step.first > 1:
        args["offset"] = step.first
    if step.limit:
        args["limit"] = step.limit
    result = yield ScriptedCall("read", args)
    if result.failed and can_list and "is a folder" in result.text:
        return (yield from _list(path, counts=False))
    return _answered(step, path, result)


def _answered(step: Reading, path: str, result: Result) -> str:
    if result.failed:
        return _failure(f"read {code(path)}", result)
    if result.images or result.text.startswith(f"{path} is no text"):
        return clipped(result.text, 600)
    page = parse_page(path, result.text)
    if page is None:
        return _quoted("read", path, result)
    if not page.lines:
        return f"{code(path)} is empty."
    match step.wants:
        case "lines":
            return _lines(path, page)
        case "words":
            count = sum(len(line.split()) for line in page.lines)
            part = "" if page.is_whole else f" in its first {counted(len(page.lines), 'line')}; it has more"
            return f"{code(path)} has {counted(count, 'word')}{part}."
        case "summary":
            points = "\n".join(f"- {point}" for point in summary(page)) or "- (no sentences or headings found)"
            part = "" if page.is_whole else f", from its first {counted(len(page.lines), 'line')}"
            return f"The headings and first sentences of {code(path)}{part}, as they stand there:\n\n{points}"
        case "text":
            return _shown(path, page)


def _lines(path: str, page: Page) -> str:
    if page.total is None:
        return f"{code(path)} has more lines than I can count."
    return f"{code(path)} has {counted(page.total, 'line')}."


def _shown(path: str, page: Page) -> str:
    shown = page.lines[:_MOST_LINES]
    last = page.first + len(shown) - 1
    if page.first == 1 and page.total == len(shown):
        title, more = f"{code(path)}:", ""
    else:
        total = "many" if page.total is None else f"{page.total:,}"
        title = f"{code(path)}, lines {page.first}–{last} of {total}:"
        more = f"\n\nTo go on: `show lines {last + 1}-{last + _MOST_LINES} of {path}`" if page.total != last else ""
    kind = path.rsplit(".", 1)[-1] if "." in path else ""
    return f"{title}\n\n{fenced(shown, kind if kind.isalnum() and kind.isascii() else '')}{more}"


def _search(step: Searching, path: str) -> Doing:
    args: dict[str, object] = {"pattern": step.pattern}
    args |= {name: value for name, value in (("path", path), ("glob", step.glob)) if value}
    result = yield ScriptedCall("search", args)
    where = f" in {code(path or step.glob)}" if path or step.glob else ""
    if result.failed:
        return _failure(f"search for {code(step.words)}{where}", result)
    found = parse_matches(result.text)
    if found is None:
        return _quoted("search", step.words, result)
    if not found.rows:
        return " ".join([f"I found no {code(step.words)}{where}.", *found.notes])
    shown = found.rows[:_MOST_MATCHES]
    left = len(found.rows) - len(shown)
    files = counted(len(found.files), "file")
    title = f"I found {code(step.words)} in {counted(len(found.rows), 'line')} of {files}{where}:"
    notes = [*([f"… and {left} more"] if left else []), *found.notes]
    return "\n\n".join([title, fenced(shown), *notes])


def _write(path: str, content: str) -> Doing:
    result = yield ScriptedCall("write", {"path": path, "content": content})
    if result.failed:
        return _failure(f"write {code(path)}", result)
    if not result.text.startswith("wrote "):
        return _quoted("write", path, result)
    return f"I wrote {code(path)} ({counted(len(content), 'character')})."


def _replace(step: Replacing, path: str) -> Doing:
    args: dict[str, object] = {"path": path, "old": step.old, "new": step.new}
    if step.everywhere:
        args["all"] = True
    result = yield ScriptedCall("edit", args)
    if result.failed:
        return _failure(f"replace {code(step.old)} in {code(path)}", result)
    if not result.text.startswith("edited "):
        return _quoted("edit", path, result)
    return f"I replaced {code(step.old)} with {code(step.new)} in {code(path)}."


def _append(path: str, content: str) -> Doing:
    """Reads the end of the file, then puts the new text after its last lines."""
    result = yield ScriptedCall("read", {"path": path})
    if result.failed and "no file called" in result.text:
        return (yield from _write(path, content))
    if result.failed:
        return _failure(f"read {code(path)}", result)
    page = parse_page(path, result.text)
    if page is not None and page.total and page.total > len(page.lines):
        result = yield ScriptedCall("read", {"path": path, "offset": max(1, page.total - 20), "limit": 40})
        page = None if result.failed else parse_page(path, result.text)
    if page is None or page.total is None:
        return f"{_quoted('read', path, result)}\n\nSo I did not append to it."
    if not page.lines:
        return (yield from _write(path, content))
    end = _unique_end(page.lines)
    result = yield ScriptedCall("edit", {"path": path, "old": end, "new": f"{end}\n{content}"})
    if result.failed or not result.text.startswith("edited "):
        return _failure(f"append to {code(path)}", result)
    return f"I appended {counted(len(content), 'character')} to {code(path)}."


def _unique_end(lines: list[str]) -> str:
    """The shortest run of last lines that stands nowhere else in what was read."""
    whole = "\n".join(lines)
    for count in range(1, len(lines)):
        end = "\n".join(lines[-count:])
        if end.strip() and whole.find(end) == len(whole) - len(end):
            return end
    return whole
