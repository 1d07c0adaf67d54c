"""Runner of Outrider's own tools: decides whether a call may run, runs it and records its result.

The intent to run a call that must not run twice is recorded before it runs.
"""

from msgspec.structs import replace

from outrider.core.approvals import (
    ANSWERS,
    NO,
    ONCE,
    AccessDecision,
    ApprovalRequest,
    argument_details,
    request_digest,
    request_length,
)
from outrider.core.errors import Refused
from outrider.core.events import Asked, Begun, Result
from outrider.core.ports import Tool, ToolContext, ToolEnvironment, Tools, Turn
from outrider.core.prompt import UNKNOWN
from outrider.core.question_text import MAX_CHARS, render_question
from outrider.core.types import Call, Replay
from outrider.system.failpoints import failpoint


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
            granted = await self._needs_still_allowed(turn, call, tool, context)
            result = await tool.reconcile(call, replace(context, granted=granted))
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
            request = await tool.approval_request(call, context) or _plain_request(call, context)
        except Refused as error:
            return await self._record(turn, Result(call.id, str(error), failed=True))
        decision = await self._decide(turn, call, request)
        match decision.verdict:
            case "allow":
                return replace(context, granted=request.needs)
            case "deny":
                return await self._record(turn, Result(call.id, render_denial(decision.reason), failed=True))
            case "ask":
                await record_question(turn, call, request)
                return None

    async def _decide(self, turn: Turn, call: Call, request: ApprovalRequest) -> AccessDecision:
        """A rule that denies wins; then the answer to a question about exactly this, or a no to anything about this
        call; then the other rules and permissions."""
        decision = await decide_or_ask(self._tool_environment, turn, request)
        if decision.verdict != "deny":
            for answered in turn.state().answers_about(call.id):
                if answered.answer == NO or answered.holds_for(request):
                    return answered.decision
        return decision

    async def _needs_still_allowed(self, turn: Turn, call: Call, tool: Tool, context: ToolContext) -> tuple[str, ...]:
        """What a call that has begun may use: what it was allowed, unless that has changed since."""
        try:
            request = await tool.approval_request(call, context)
        except Refused:
            return ()
        is_allowed = request and (await self._decide(turn, call, request)).verdict == "allow"
        return request.needs if request and is_allowed else ()


async def decide_or_ask(environment: ToolEnvironment, turn: Turn, request: ApprovalRequest) -> AccessDecision:
    """The decision by rules and permissions. What is too long to be read by a person is denied, not asked."""
    decision = await environment.decide_access(request, turn.session)
    length = request_length(request)
    if decision.verdict == "ask" and length > MAX_CHARS:
        reason = f"it needs approval, and its {length:,} characters are more than a person can be shown ({MAX_CHARS:,})"
        return AccessDecision("deny", reason)
    return decision


async def record_question(turn: Turn, call: Call, request: ApprovalRequest) -> Asked:
    """Ask a person about a call. The turn waits from here on. Every request is a question of its own."""
    # A request without needs is asked about because a rule says so for each call, so a wider yes has no effect.
    choices = ANSWERS if request.needs else (ONCE, NO)
    text, digest, number = render_question(request), request_digest(request), 1
    while True:
        name = call.id if number == 1 else f"{call.id}-{number}"
        asked = Asked(f"ask-{name}", text, call.id, choices, request.needs, digest, request)
        if await turn.record(asked, key=f"ask/{name}"):
            failpoint("approval_pending")
            return asked
        number += 1


async def deny_unreachable(turn: Turn, environment: ToolEnvironment) -> bool:
    """Answer questions with no where nobody can answer them. True when there were any."""
    state = turn.state()
    answers = environment.answer_unreachable(turn.session, tuple(state.questions.values()), state.address)
    for answered in answers:
        await turn.record(answered, key=f"answer/{answered.ask}")
    return bool(answers)


def render_denial(reason: str) -> str:
    """The result of a call that was not allowed, as the model reads it."""
    return f"not run: {reason}. Do not work around this: continue without it, or ask what to do"


def _plain_request(call: Call, context: ToolContext) -> ApprovalRequest:
    """A call that needs nothing beyond what every call may do. A rule may still match it."""
    command = call.args.get("command")
    text = command if isinstance(command, str) else ""
    rest = {name: value for name, value in call.args.items() if not (text and name == "command")}
    return ApprovalRequest(call.tool, text, (), context.session.workspace, details=argument_details(rest))
