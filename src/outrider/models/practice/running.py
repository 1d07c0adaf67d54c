"""How the practice model runs commands, looks after tasks, and says what came of them."""

from outrider.core.events import Result
from outrider.core.prompt import UNKNOWN
from outrider.models.practice.outcomes import Outcome, Row, parse_outcome, parse_rows, shown
from outrider.models.practice.phrases import clipped, code, fenced
from outrider.models.practice.recall import Doing, Recall
from outrider.models.practice.steps import Running, Tasks, Tending
from outrider.models.scripted_reply import ScriptedCall

_MOST_TASKS = 20
_WISHES = {"read": "read the output of", "wait": "wait for", "kill": "kill"}
_NOT_RUN = "not run: "


def run(step: Running, recall: Recall) -> Doing:
    args: dict[str, object] = {"command": step.command}
    if step.background:
        args["background"] = True
    result = yield ScriptedCall("shell", args)
    outcome = parse_outcome(result.text)
    name = code(clipped(step.command, 200))
    if outcome is None:
        return _without(f"run {name}", name, result)
    return _told(name, outcome, recall)


def tend(step: Tending, recall: Recall) -> Doing:
    task = step.task or recall.task
    if not task:
        listed = parse_rows((yield ScriptedCall("tasks", {"action": "list"})).text)
        rows = listed.tasks if listed else []
        found = next((row for row in rows if row.is_open), rows[0] if rows else None)
        if found is None:
            return "This session has no tasks."
        task = found.task
    result = yield ScriptedCall("tasks", {"action": step.action, "task": task})
    outcome = parse_outcome(result.text)
    if outcome is None:
        return _without(f"{_WISHES[step.action]} task {code(task)}", f"Task {code(task)}", result)
    name = code(clipped(outcome.what, 200)) if outcome.what else f"Task {code(task)}"
    if not outcome.is_open:
        recall.answered.add(task)
    if step.action == "kill":
        is_killed = outcome.status == "killed"
        return f"{name} was killed." if is_killed else f"{name} had ended before: it {_how(outcome)}."
    return _told(name, outcome, recall)


def tell_tasks(step: Tasks) -> Doing:
    result = yield ScriptedCall("tasks", {"action": "list"})
    listed = parse_rows(result.text)
    if listed is None:
        return _without("list the tasks", "The list", result)
    rows = [row for row in listed.tasks if row.is_open or not step.only_open]
    if not rows:
        return "Nothing is running." if step.only_open else "This session has no tasks."
    more = len(rows) - _MOST_TASKS
    lines = [*map(_row, rows[:_MOST_TASKS]), *([f"- … and {more:,} more"] if more > 0 else [])]
    title = "These tasks are running:" if step.only_open else "The tasks of this session, the newest first:"
    return "\n".join([title, "", *lines])


def _row(row: Row) -> str:
    exit_code = "" if row.exit_code is None else f", exit code {row.exit_code}"
    return f"- {code(row.task)} {code(clipped(row.what))}: {row.state.replace('_', ' ')}{exit_code}"


def _without(wish: str, name: str, result: Result) -> str:
    """For an answer that tells of no command: a refusal, mostly."""
    if result.text == UNKNOWN:
        return f"I do not know whether I managed to {wish}: {UNKNOWN}."
    if result.text.startswith(_NOT_RUN):
        reason = result.text.removeprefix(_NOT_RUN).partition(". ")[0]
        return f"{name} was not run: {clipped(reason, 300)}."
    if result.failed:
        return f"I could not {wish}: {clipped(result.text, 600)}"
    return f"When I tried to {wish}, the tool answered:\n\n{fenced(shown(result.text) or ['(nothing)'])}"


def _told(name: str, outcome: Outcome, recall: Recall) -> str:
    """What became of a command, and what it wrote."""
    lines = shown(outcome.output or "")
    match outcome.status:
        case "background_started":
            return f"{name} was started in the background as task {code(outcome.task)}.{_later(outcome, recall)}"
        case "auto_backgrounded":
            title = f"{name} takes longer and goes on in the background as task {code(outcome.task)}."
            title += _later(outcome, recall)
        case "stalled":
            title = f"{name} (task {code(outcome.task)}) runs, and seems to wait for input."
        case _ if outcome.is_open:
            title = f"{name} still runs as task {code(outcome.task)}."
        case _:
            title = f"{name} {_how(outcome)}" + ("." if lines or outcome.output is None else ", and it wrote nothing.")
    if not lines:
        return title
    return f"{title}{' So far it wrote:' if outcome.is_open else ''}\n\n{fenced(lines)}"


def _how(outcome: Outcome) -> str:
    """How a command ended."""
    why = f" ({clipped(outcome.reason, 300)})" if outcome.reason else ""
    match outcome.state or outcome.status:
        case "killed":
            return f"was killed{why}"
        case "timed_out":
            return f"was ended at its time limit{why}"
        case "lost":
            return f"was lost, and how it ended is not known{why}"
        case "done" | "succeeded" | "failed" if outcome.exit_code is not None:
            return f"{'failed' if outcome.exit_code else 'finished'}: exit code {outcome.exit_code}{why}"
        case "done" | "succeeded":
            return f"finished{why}"
        case other:
            return f"is {clipped(other.replace('_', ' '))}{why}"


def _later(outcome: Outcome, recall: Recall) -> str:
    """Whether its end will be told."""
    if outcome.task in recall.ended:
        return ""
    if outcome.notify:
        return " I will tell you when it has ended."
    return f" I cannot tell you here when it ends; ask with `wait for {outcome.task}`."
