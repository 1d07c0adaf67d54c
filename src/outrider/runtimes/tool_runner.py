"""Runner of Outrider's own tools: decides whether a call may run, runs it and records its result.

The intent to run a call that must not run twice is recorded before it runs.
"""

import msgspec
from msgspec.structs import replace

from outrider.core.approvals import (
    ANSWERS,
    NO,
    ONCE,
    AccessDecision,
    ApprovalRequest,
    decision_of_answer,
    render_approval,
)
from outrider.core.errors import Refused
from outrider.core.events import Asked, Begun, Result
from outrider.core.plan import State
from outrider.core.ports import Tool, ToolContext, ToolEnvironment, Tools, Turn
from outrider.core.prompt import UNKNOWN
from outrider.core.types import Call, Replay
from outrider.system.failpoints import failpoint

_MAX_COMMAND_CHARS = 2_000
"""Characters of a call that a person is shown."""


class ToolRunner:
    """The tools of a home, for any runtime."""

    def __init__(self, tools: Tools, environment: ToolEnvironment) -> None:
        self._tools = tools
        self._tool_environment = environment

    def tools_of(self, turn: Turn) -> Tools:
        """The tools this session may use: all, unless it was started with fewer."""
        only = turn.state().settings.get("tools", "")
        return {name: self._tools[name] for name in only.split(",") if name in self._tools} if only else self._tools

    async def run(self, turn: Turn, call: Call) -> Result | None:
        """Run a call and record its result. None when a question was recorded instead: a person must answer first."""
        tools = self.tools_of(turn)
        tool = tools.get(call.tool)
        if tool is None:
            names = ", ".join(tools) or "none"
            text = f"there is no tool {call.tool!r}; available: {names}"
            return await self._record(turn, Result(call.id, text, failed=True))
        if call.broken:
            text = f"the arguments were not a JSON object, so nothing was run. You wrote: {call.broken[:500]}"
            return await self._record(turn, Result(call.id, text, failed=True))
        match await self._authorize(turn, call, tool):
            case ToolContext() as context:
                if tool.spec.replay is Replay.NEVER:
                    await turn.record(Begun(call.id))
                    failpoint("call_intent_recorded")
                try:
                    result = await tool.run(call, context)
                except Refused as error:
                    result = Result(call.id, str(error), failed=True)
                failpoint("result_not_recorded")
                return await self._record(turn, result)
            case result:
                return result

    async def reconcile(self, turn: Turn, call: Call) -> Result:
        """Find out what became of a call that had begun when the process died, and record it; or that it is unknown."""
        # A call of another program's tool is not ours, even when one of our tools has the same name.
        tool = None if call.id in turn.state().abandoned_calls else self._tools.get(call.tool)
        result = None
        if tool:
            context = await self._tool_environment.tool_context(turn.session, turn.state(), call)
            request = await tool.approval_request(call, context)  # it was allowed, or it would not have begun
            result = await tool.reconcile(call, replace(context, granted=request.needs) if request else context)
        return await self._record(turn, result or Result(call.id, UNKNOWN, failed=True))

    async def _record(self, turn: Turn, result: Result) -> Result:
        text, details = self._tool_environment.redact(result.text), self._tool_environment.redact(result.details)
        redacted = replace(result, text=text, details=details)
        await turn.record(redacted)
        return redacted

    async def _authorize(self, turn: Turn, call: Call, tool: Tool) -> ToolContext | Result | None:
        """Where the call may run; its result when it may not; None when a person is asked first."""
        context = await self._tool_environment.tool_context(turn.session, turn.state(), call)
        try:
            request = await tool.approval_request(call, context)
        except Refused as error:
            return await self._record(turn, Result(call.id, str(error), failed=True))
        request = request or _plain_request(call, context)
        decision = answered_decision(turn.state(), call)
        decision = decision or await self._tool_environment.decide_access(request, turn.session)
        match decision.verdict:
            case "allow":
                return replace(context, granted=request.needs)
            case "deny":
                return await self._record(turn, Result(call.id, render_denial(decision.reason), failed=True))
            case "ask":
                await record_question(turn, call, request)
                return None


def question_id(call: Call) -> str:
    return f"ask-{call.id}"


async def record_question(turn: Turn, call: Call, request: ApprovalRequest) -> None:
    """Ask a person about a call. The turn waits from here on."""
    # A request without needs is asked about because a rule says so for each call, so a wider yes has no effect.
    choices = ANSWERS if request.needs else (ONCE, NO)
    question = Asked(question_id(call), render_approval(request), call.id, choices, request.needs)
    await turn.record(question, key=f"ask/{call.id}")
    failpoint("approval_pending")


async def deny_unreachable(turn: Turn, environment: ToolEnvironment) -> bool:
    """Answer questions with no where nobody can answer them. True when there were any."""
    state = turn.state()
    answers = environment.answer_unreachable(turn.session, tuple(state.questions.values()), state.address)
    for answered in answers:
        await turn.record(answered, key=f"answer/{answered.ask}")
    return bool(answers)


def answered_decision(state: State, call: Call) -> AccessDecision | None:
    """The decision on a call by the answer to its question; None when there is no answer."""
    answer = state.answers.get(call.id)
    return decision_of_answer(answer, is_by_person=call.id not in state.unattended) if answer is not None else None


def render_denial(reason: str) -> str:
    """The result of a call that was not allowed, as the model reads it."""
    return f"not run: {reason}. Do not work around this: continue without it, or ask what to do"


def _plain_request(call: Call, context: ToolContext) -> ApprovalRequest:
    """A call that needs nothing beyond what every call may do. A rule may still match it."""
    command = call.args.get("command")
    text = command if isinstance(command, str) else msgspec.json.encode(call.args).decode()
    return ApprovalRequest(call.tool, text[:_MAX_COMMAND_CHARS], (), context.session.workspace)
