"""The practice model: the built-in demo model, which needs no key, no network and no download.

It recognises a handful of requests by their wording and does them with the real tools. Each step of a request is
exactly one tool call. The same prompt always gets the same reply, and nothing is remembered between prompts. Text that
a tool returned or a background task wrote is quoted, never interpreted as a request.
"""

import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

import msgspec
from msgspec import Struct

from outrider.config.models import ModelChoice
from outrider.core.compaction import SUMMARISE, message_size, outline
from outrider.core.events import Delta, Reply, Result
from outrider.core.ports import Emit, Model
from outrider.core.prompt import SUMMARY, UNKNOWN, AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.core.store_port import Blobs
from outrider.core.text import clip, one_line, plural
from outrider.core.types import Call, ModelTraits, Usage, call_id

MAX_CALLS = 8
"""Tool calls made for one request."""
PLUG_IN = (
    "To use a real model, set `OPENAI_API_KEY` or `ANTHROPIC_API_KEY`, "
    "or run `outrider config set model ollama:llama3.2`."
)
ABOUT = (
    "I am Outrider's built-in practice model. I am not a language model: I recognise a few requests, "
    "so that you can try Outrider without a key. The files and commands I work with are real."
)
EXAMPLES = """You can ask for these things, and join several of them with "then":

- `list the files` · `what is in src?` · `read README.md` · `find TODO in src`
- `write notes.txt saying hello` · `replace hello with hi in notes.txt`
- `run ls -la` · `run make in the background` · `what is running?`
- `show the output of t-abc123` · `wait for t-abc123` · `kill t-abc123`
- `say hello` · `help`"""
_MAX_REQUEST = 20_000
_MAX_LINES = 60
"""Lines quoted from the beginning of a text, and as many from its end."""
_MAX_LINE = 500
_NOTICE_LINES = 10


class PracticeModel:
    def __init__(self, name: str = "practice", window: int = 0) -> None:
        self.traits = ModelTraits(name=name, wire="practice", window=window, images=False)

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        reply = answer(prompt)
        for word in re.findall(r"\S+\s*|\s+", reply.text):
            emit(Delta(word))
        for call in reply.calls:
            emit(Delta(call.tool, "call"))
        return reply


def open_model(choice: ModelChoice, blobs: Blobs) -> AbstractAsyncContextManager[Model]:
    return nullcontext(PracticeModel(choice.name, choice.context_window))


class Step(Struct, frozen=True):
    """One thing to do: a tool call, or only something to say."""

    tool: str = ""
    args: dict[str, object] = {}
    goal: str = ""
    """Completes the sentence "I could not …"."""
    text: str = ""
    """The whole answer of a step without a tool."""


def answer(prompt: Prompt) -> Reply:
    """The next tool call that the person's request needs, or the answer once all of its calls have results."""
    messages = prompt.messages
    if messages and isinstance(messages[-1], UserMessage) and messages[-1].text == SUMMARISE:
        return _reply(prompt, outline(messages[:-1]) or "Nothing has been said yet.")
    finals = [n for n, message in enumerate(messages) if isinstance(message, AssistantMessage) and not message.calls]
    start = finals[-1] + 1 if finals else 0
    paths = [path for call, _ in _results(messages[:start]) if isinstance(path := call.args.get("path"), str)]
    steps = _steps_of_turn(messages[start:], paths[-1] if paths else "")
    results = _results(messages[start:])
    offered, calls_made, paragraphs = {tool.name for tool in prompt.tools}, len(results), list[str]()
    for step in steps:
        if not step.tool:
            paragraphs.append(step.text)
        elif step.tool not in offered:
            paragraphs.append(f"I would need the tool `{step.tool}`, which is not available in this session.")
        elif result := _take_result(results, step):
            paragraphs.append(_render_result(step, result))
        elif calls_made < MAX_CALLS:
            return _reply(prompt, "", Call(call_id(prompt.saw, 0), step.tool, step.args))
        else:
            paragraphs.append(f"I stopped here: one request may take at most {MAX_CALLS} tool calls.")
            break
    return _reply(prompt, "\n\n".join(filter(None, paragraphs)) or "There is nothing to do.")


def _reply(prompt: Prompt, text: str, *calls: Call) -> Reply:
    read = len(prompt.system) + len(prompt.tail) + sum(message_size(message) for message in prompt.messages)
    read += sum(len(tool.name) + len(tool.description) + len(str(tool.schema)) for tool in prompt.tools)
    written = len(text) + sum(len(call.tool) + len(str(call.args)) for call in calls)
    # About four characters make a token.
    usage = Usage(input=-(-read // 4), output=-(-written // 4))
    return Reply(text, prompt.saw, calls, model="practice", usage=usage)


def _results(messages: Sequence[Message]) -> list[tuple[Call, Result]]:
    results = {r.call: r for message in messages if isinstance(message, ToolMessage) for r in message.results}
    calls = (call for message in messages if isinstance(message, AssistantMessage) for call in message.calls)
    return [(call, results[call.id]) for call in calls if call.id in results]


def _take_result(results: list[tuple[Call, Result]], step: Step) -> Result | None:
    """Removes and returns the first result of this very call."""
    for n, (call, result) in enumerate(results):
        if call.tool == step.tool and call.args == step.args:
            del results[n]
            return result
    return None


def _steps_of_turn(messages: Sequence[Message], path: str) -> list[Step]:
    """The steps of all messages from outside, in order; `path` is the file that "it" means at first."""
    steps: list[Step] = []
    for message in messages:
        if not isinstance(message, UserMessage) or message.text.startswith(SUMMARY):
            continue
        notices, request = split_notices(message.text)
        if message.source == "task" and not notices:
            notices, request = [message.text], ""
        steps += [Step(text=_render_notice(notice)) for notice in notices]
        steps += parse_steps(request, path) if request or not notices else []
        path = next((str(step.args["path"]) for step in reversed(steps) if "path" in step.args), path)
    return steps


# Requests. Gaps and repetitions are bounded, so that no text takes long to match.

_QUOTED = r'"[^"]+"|`[^`]+`'
_PATH = rf"(?:the (?:file|folder) )?(?P<path>{_QUOTED}|[^\s,;]*[^\s,;.!?]|\.\.?)"
_FILE = r"(?P<path>it|\S*\w\.\w+)"
_TASK = r"(?:task )?`?(?P<task>t-\w+)`?"
_VERB = r"(?:list|ls|read|show|cat|open|write|create|replace|find|search|grep|run|say|wait|kill|stop|what)\b"
_GAP = re.compile(r"\s{40}")
_PREFIX = re.compile(
    r"(?:please|now|and|then|also|first|(?:can|could|would) you|(?:hello|hi|hey)(?: there| outrider)?(?=[,.!]))"
    r"(?:[,:.!]\s*|\s+)(?=\S)",
    re.IGNORECASE,
)
_CONDITION = re.compile(r"(?:if|unless|when|whenever|once|only|but|do not|don'?t|never)\b", re.IGNORECASE)
_THEN = rf",\s*(?:and\s+)?then\s+|\s+and\s+then\s+|(?<![;&|])\s+then\s+(?={_VERB})|\s*\n\s*"
_AND = rf"\s*;\s*|,?\s+and\s+(?={_VERB})"
_SEPARATOR = re.compile(rf"{_QUOTED}|(?P<separator>{_THEN}|{_AND}|(?<=[.!?])\s+(?={_VERB}))", re.IGNORECASE)
_CLEAR_END = rf"(?:{_AND}|[.!?]+(?:\s+|\Z))"
_RUN = re.compile(
    r"run\s+(?!(?:the|a|an|my|your|our|all|this|it|that)\s)(?:`(?P<quoted>[^`\n]+)`|(?P<command>[^`\s][^\n]*?))"
    r"(?P<background>,?\s+in the background)?(?:,?\s+(?:and\s+)?(?:tell|notify) me\b[^,;\n]{0,80})?(?:,?\s+please)?"
    rf"(?:\s*\Z|{_THEN}|,\s+(?=(?:and\s+|but\s+)?(?:if|unless|when|but)\b)"
    # All other punctuation is the shell's, unless quotes or "in the background" mark where the command ends.
    rf"|(?(quoted){_CLEAR_END}|(?(background){_CLEAR_END}|(?!))))",
    re.IGNORECASE,
)


def parse_steps(text: str, path: str = "") -> list[Step]:
    """The steps of a request; `path` is the file that "it" means. A request with a condition is not understood."""
    rest, steps = text.strip(), list[Step]()
    while rest and len(steps) <= MAX_CALLS:
        while prefix := _PREFIX.match(rest):
            rest = rest[prefix.end() :]
        if match := _WRITE_REST.pattern.fullmatch(rest):
            steps.append(_step(_WRITE_REST, match, path))
            break
        if len(rest) > _MAX_REQUEST or _GAP.search(rest) or _CONDITION.match(rest):
            return [_not_understood(text)]
        if match := _RUN.match(rest):
            steps.append(_run_step(match))
            rest = rest[match.end() :]
        else:
            separator = next((m for m in _SEPARATOR.finditer(rest) if m["separator"]), None)
            part, rest = (rest[: separator.start()], rest[separator.end() :]) if separator else (rest, "")
            steps += [_parse_part(part.strip(), path)] if part.strip(" .,!") else []
        path = str(steps[-1].args.get("path", path)) if steps else path
    return steps or [_not_understood(text)]


class RequestPattern(Struct, frozen=True):
    """A wording that is understood. Its named groups are the arguments of the tool."""

    pattern: re.Pattern[str]
    goal: str
    tool: str = ""
    args: dict[str, object] = {}


def _request(pattern: str, goal: str, tool: str = "", **args: object) -> RequestPattern:
    # Where a text to write or to say comes last, the punctuation belongs to it.
    end = "" if pattern.endswith("(?P<content>.+)") else r"(?:,?\s+please)?[.!?]*"
    return RequestPattern(re.compile(rf"(?:{pattern}){end}", re.IGNORECASE | re.DOTALL), goal, tool, args)


_REQUESTS = [
    _request(r"(?:hello|hi|hey)(?: there| outrider)?", f"Hello! {ABOUT}\n\n{EXAMPLES}\n\n{PLUG_IN}"),
    _request(r"help|\?|what can (?:you|i) \w+", f"{ABOUT}\n\n{EXAMPLES}\n\n{PLUG_IN}"),
    _request(r"(?:who|what) are you", f"{ABOUT}\n\n{PLUG_IN}"),
    _request(r"say:?\s+(?P<content>.+)", "{content}"),
    _request(rf"(?:write|create) {_PATH} (?:saying|with|containing):?\s+(?P<content>.+)", "write {path}", "write"),
    _request(
        r"what(?:'s| is) running|(?:list|show)(?: the| my)?(?: running)? tasks",
        "list the tasks",
        "tasks",
        action="list",
    ),
    _request(rf"(?:show|read) (?:the )?output of {_TASK}", "read the output of task {task}", "tasks", action="read"),
    _request(rf"wait for {_TASK}", "wait for task {task}", "tasks", action="wait"),
    _request(rf"(?:kill|stop) {_TASK}", "kill task {task}", "tasks", action="kill"),
    _request(rf"(?:list|ls|show)(?: me)?(?: all)?(?: the| my)? files(?: in {_PATH})?", "list {path}", "list", path="."),
    _request(r"(?:list|ls)|what(?:'s| is)(?: in)? (?:here|this folder)", "list {path}", "list", path="."),
    _request(rf"(?:read|show|cat|open|what(?:'s| is) in)(?: me)? {_FILE}", "read {path}", "read"),
    _request(rf"(?:list|ls|what(?:'s| is) in) {_PATH}", "list {path}", "list"),
    _request(rf"(?:read|show|cat|open)(?: me)? {_PATH}", "read {path}", "read"),
    _request(
        rf"replace (?P<old>{_QUOTED}|.{{1,300}}?) with (?P<new>{_QUOTED}|.{{1,300}}?) in {_PATH}",
        "replace {old} with {new} in {path}",
        "edit",
    ),
    _request(
        rf"(?:find|search for|grep) (?P<pattern>{_QUOTED}|.{{1,300}}?) in {_PATH}",
        "search for {pattern} in {path}",
        "search",
        literal=True,
    ),
    _request(r"(?:find|search for|grep) (?P<pattern>.{1,300})", "search for {pattern}", "search", literal=True),
]


_WRITE_REST = _request(rf"(?:write|create) {_PATH}:\s+(?P<content>.+)", "write {path}", "write")
"""The rest of the message is the content of the file."""


def _parse_part(part: str, path: str) -> Step:
    for request in _REQUESTS:
        if match := request.pattern.fullmatch(part):
            return _step(request, match, path)
    return _not_understood(part)


def _step(request: RequestPattern, match: re.Match[str], path: str) -> Step:
    args = request.args | {name: _unquote(value) for name, value in match.groupdict().items() if value}
    if args.get("path") == "it":
        if not path:
            return Step(text="I do not know which file you mean. Please name it.")
        args["path"] = path
    if not request.tool:
        return Step(text=request.goal.format_map(args) or "…")
    goal = request.goal.format_map({name: _code(clip(str(value), 200)) for name, value in args.items()})
    return Step(request.tool, args, goal)


def _run_step(match: re.Match[str]) -> Step:
    # A full stop after a word ends the sentence, not the command.
    command = match["quoted"] or re.sub(r"(?<=\w)\.$", "", match["command"].strip())
    background: dict[str, object] = {"background": True} if match["background"] else {}
    return Step("shell", {"command": command} | background, f"run {_code(clip(command, 200))}")


def _not_understood(text: str) -> Step:
    request = _code(clip(text, 120)) if text.strip() else "an empty message"
    hint = "I am the practice model and know only a few requests, such as `list the files` or `help`"
    return Step(text=f"I did not understand {request}: {hint}. {PLUG_IN}")


def _unquote(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 2 and text[0] == text[-1] and text[0] in "\"'`" else text


# Results of tools, and notices on background tasks.

_ENTRY = re.compile(r"(?P<name>.+?)(?P<folder>/|  (?:[\d.,]+ \w+|\(.+\)))")
_PAGE = re.compile(r".*: lines (?P<part>(?P<first>[\d,]+)–(?P<last>[\d,]+) of (?P<total>[\d,]+|more))(?:, .*)?")
_MATCH = re.compile(r".+:\d+: ")
_WRITTEN = re.compile(r"(?:wrote|created|edited|replaced) .*", re.IGNORECASE)
_NOT_RUN = "not run: "


class TaskReport(Struct, frozen=True):
    """What the practice model reads in a result of `shell` or `tasks`."""

    status: str = ""
    task: str = ""
    state: str = ""
    what: str = ""
    exit_code: int | None = None
    reason: str = ""
    output: str = ""
    notify: bool = False
    tasks: list["TaskReport"] = []


def _render_result(step: Step, result: Result) -> str:
    text = result.text
    if text == UNKNOWN:
        return f"I do not know whether I managed to {step.goal}: {UNKNOWN}."
    if text.startswith(_NOT_RUN):
        reason = text.removeprefix(_NOT_RUN).partition(". ")[0].replace("the person ", "you ")
        return f"I did not {step.goal}: {clip(reason, 300)}."
    if result.failed:
        return f"I could not {step.goal}: {clip(text, 600)}"
    match step.tool:
        case "list":
            rendering = _render_listing(str(step.args["path"]), text)
        case "read":
            rendering = _render_page(str(step.args["path"]), text)
        case "shell" | "tasks":
            rendering = _render_command(step, text)
        case "search" if text.startswith("no match"):
            rendering = f"I found no {_code(str(step.args['pattern']))}."
        case "search" if _MATCH.match(text):
            rendering = f"I found {_code(str(step.args['pattern']))} in these lines:\n\n{_quote(text)}"
        case "write" | "edit" if _WRITTEN.fullmatch(text):
            rendering = f"Done: {text}."
        case _:
            rendering = ""
    # Nothing is claimed about a result of another form: it may be a failure that the provider's wire does not mark.
    return rendering or f"When I tried to {step.goal}, the tool answered:\n\n{_quote(text)}"


def _render_listing(path: str, text: str) -> str:
    name = "This folder" if path == "." else _code(path)
    lines = [line for line in text.split("\n") if line]
    notes = [line for line in lines if line.startswith("[") and line.endswith("]")]
    entries = [_ENTRY.fullmatch(line) for line in lines if line not in notes]
    rows = [f"- {_code(entry['name'] + ('/' if entry['folder'] == '/' else ''))}" for entry in entries if entry]
    if not rows or len(rows) < len(entries):
        return f"{name} is empty." if text == f"{path} is empty" else ""
    folders = sum(row.endswith("/`") for row in rows)
    count = f"{plural(len(rows) - folders, 'file')} and {plural(folders, 'folder')}"
    more = [f"- … and {len(rows) - 100} more"] if len(rows) > 100 else []
    return "\n".join([f"{name} contains {count}:", "", *rows[:100], *more, *notes])


def _render_page(path: str, text: str) -> str:
    header, _, content = text.partition("\n")
    page = _PAGE.fullmatch(header)
    if not page:
        return ""
    is_whole = page["first"] == "1" and page["last"] == page["total"]
    suffix = path.rsplit(".", 1)[-1] if re.search(r"\w\.[a-z0-9]+$", path) else ""
    return f"{_code(path)}{'' if is_whole else ', lines ' + page['part']}:\n\n{_quote(content, suffix)}"


def _render_command(step: Step, text: str) -> str:
    try:
        report = msgspec.json.decode(text, type=TaskReport)
    except msgspec.DecodeError:
        return ""
    if step.args.get("action") == "list":
        return _render_tasks(report.tasks)
    name = _code(clip(str(step.args.get("command") or report.what or report.task), 200))
    exit_code = "" if report.exit_code is None else f": exit code {report.exit_code}"
    reason = f" ({clip(report.reason, 300)})" if report.reason else ""
    match report.state or report.status:
        case "background_started" | "auto_backgrounded":
            later = (
                "I will tell you when it ends." if report.notify else f"To see how it ends: `wait for {report.task}`."
            )
            sentence = f"{name} is running in the background as task `{report.task}`. {later}"
        case "done" | "succeeded" | "failed":
            sentence = f"{name} {'failed' if report.exit_code else 'finished'}{exit_code}{reason}."
        case "":
            return ""
        case "killed":
            sentence = f"{name} was killed{reason}."
        case state:
            sentence = f"{name} (task `{report.task}`) is {clip(state.replace('_', ' '), 60)}{reason}."
    return f"{sentence}\n\n{_quote(report.output)}" if report.output.strip("\n") else sentence


def _render_tasks(tasks: Sequence[TaskReport]) -> str:
    rows = [
        f"- `{task.task}` {_code(clip(task.what, 120))}: {task.state.replace('_', ' ')}"
        + ("" if task.exit_code is None else f", exit code {task.exit_code}")
        for task in tasks
    ]
    more = [f"- … and {len(rows) - 20} more"] if len(rows) > 20 else []
    return "\n".join(["Tasks of this session, newest first:", "", *rows[:20], *more]) if rows else "There are no tasks."


_NOTICE = re.compile(r"\[Task (?P<task>t-\w+) (?P<state>[^:]*)(?:: (?P<label>.*))?\]")
_NOTICE_LINE = re.compile(
    r"\| ?(?P<line>.*)|(?P<field>[a-z ]+): (?P<value>.*)|no output|last output.*:|\[(?:…|This was) .*\]|.* tasks tool\."
)
_RUNNING = re.compile(r"\[Tasks running now:\]|- (?:t-\w+: .*|… and \d+ more)")


def split_notices(text: str) -> tuple[list[str], str]:
    """The notices on background tasks in a text, and the request beside them.

    Over HTTP all messages between two replies arrive as one text, with the list of running tasks at its end.
    """
    notices: list[list[str]] = []
    request: list[str] = []
    is_notice = is_summary = False
    for line in text.split("\n"):
        is_head = _NOTICE.fullmatch(line) is not None
        is_summary = not is_head and bool(_RUNNING.fullmatch(line)) and (is_summary or line.startswith("["))
        is_notice = is_head or (is_notice and not is_summary and bool(_NOTICE_LINE.fullmatch(line)))
        if is_head:
            notices.append([line])
        elif is_notice:
            notices[-1].append(line)
        elif not is_summary:
            request.append(line)
    return ["\n".join(notice) for notice in notices], "\n".join(request).strip()


def _render_notice(text: str) -> str:
    head, *lines = text.split("\n")
    notice = _NOTICE.fullmatch(head)
    if not notice:
        return f"Noted: {clip(text, 120)}"
    matches = [match for line in lines if (match := _NOTICE_LINE.fullmatch(line))]
    fields = {match["field"]: match["value"] for match in matches if match["field"]}
    output = "\n".join(match["line"] for match in matches if match["line"] is not None)
    name = fields.get("description") or fields.get("command") or notice["label"] or notice["task"]
    exit_code = f": exit code {fields['exit code']}" if "exit code" in fields else ""
    reason = f" ({clip(fields['reason'], 300)})" if "reason" in fields else ""
    state = "finished" if notice["state"] == "succeeded" else clip(notice["state"], 120)
    sentence = f"{_code(clip(name, 120))} {state}{exit_code}{reason}."
    return f"{sentence}\n\n{_quote(output, last=_NOTICE_LINES)}" if output else sentence


def _code(text: str) -> str:
    """Inline code that nothing in the text can close."""
    flat = one_line(text) or " "
    ticks = "`" * (max((len(run) for run in re.findall(r"`+", flat)), default=0) + 1)
    return f"{ticks} {flat} {ticks}" if "`" in flat else f"`{flat}`"


def _quote(text: str, language: str = "", *, last: int = 0) -> str:
    """A code block that nothing in the text can close: its last lines, or its beginning and its end."""
    lines = text.strip("\n").split("\n")
    omitted = len(lines) - 2 * _MAX_LINES
    if last:
        lines = lines[-last:]
    elif omitted > 0:
        lines = [*lines[:_MAX_LINES], f"[… {omitted:,} lines left out …]", *lines[-_MAX_LINES:]]
    lines = [line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + " …" for line in lines]
    fence = "`" * (max((len(run) for line in lines for run in re.findall(r"`{3,}", line)), default=2) + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])
