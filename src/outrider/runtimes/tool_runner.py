"""Runs calls of our own tools: allowed first, intent written down before what must not happen twice, result after."""

import msgspec
from msgspec.structs import replace

from outrider.core.approvals import ANSWERS, NO, ONCE, ApprovalRequest, Verdict, render_approval
from outrider.core.errors import Refused
from outrider.core.events import Asked, Begun, Result
from outrider.core.ports import Tool, ToolContext, ToolEnvironment, Tools, Turn
from outrider.core.prompt import UNKNOWN
from outrider.core.types import Call, Replay
from outrider.system.failpoints import failpoint

_MAX_COMMAND_CHARS = 2_000
"""Characters of a call that are shown to whoever is asked about it."""
DENIED = "not run: the person did not allow it. Do not try to get around that; do without it, or ask what to do"


class ToolRunner:
    """The tools of a home, for whichever runtime a model calls them in."""

    def __init__(self, tools: Tools, environment: ToolEnvironment) -> None:
        self._tools = tools
        self._tool_environment = environment

    def tools_of(self, turn: Turn) -> Tools:
        """The tools this session may use: all, unless it was begun with fewer."""
        only = turn.state().settings.get("tools", "")
        return {name: self._tools[name] for name in only.split(",") if name in self._tools} if only else self._tools

    async def run(self, turn: Turn, call: Call) -> None:
        """Run a call and record its result; or record that a person is asked first, and nothing else."""
        tools = self.tools_of(turn)
        tool = tools.get(call.tool)
        if tool is None:
            known = ", ".join(tools) or "none"
            await turn.record(
                Result(call.id, f"there is no tool called {call.tool!r}; there are: {known}", failed=True)
            )
        elif call.broken:
            text = f"the arguments were not a JSON object, so nothing was run. You wrote: {call.broken[:500]}"
            await turn.record(Result(call.id, text, failed=True))
        elif here := await self._authorize(turn, call, tool):
            if tool.spec.replay is Replay.NEVER:
                await turn.record(Begun(call.id))
                failpoint("call_intent_recorded")
            try:
                result = await tool.run(call, here)
            except Refused as error:
                result = Result(call.id, str(error), failed=True)
            failpoint("result_not_recorded")
            await self.record(turn, result)

    async def reconcile(self, turn: Turn, call: Call) -> None:
        """A call began and the process died: what came of it is found out, or told as unknown."""
        # A call that was made of somebody else's tool is none of ours, whatever ours is called.
        tool = None if call.id in turn.state().abandoned_calls else self._tools.get(call.tool)
        result = None
        if tool:
            here = await self._tool_environment.tool_context(turn.session, turn.state(), call)
            request = await tool.approval_request(call, here)  # it was allowed, or it would not have begun
            result = await tool.reconcile(call, replace(here, granted=request.needs) if request else here)
        await self.record(turn, result or Result(call.id, UNKNOWN, failed=True))

    async def record(self, turn: Turn, result: Result) -> None:
        text, details = self._tool_environment.redact(result.text), self._tool_environment.redact(result.details)
        await turn.record(replace(result, text=text, details=details))

    async def _authorize(self, turn: Turn, call: Call, tool: Tool) -> ToolContext | None:
        """Where the call may run; None when it was denied, or when a person is asked first."""
        here = await self._tool_environment.tool_context(turn.session, turn.state(), call)
        try:
            request = await tool.approval_request(call, here)
        except Refused as error:
            await turn.record(Result(call.id, str(error), failed=True))
            return None
        request = request or _plain_request(call, here)
        answer = turn.state().answers.get(call.id)
        verdict = await self._tool_environment.verdict(request, turn.session) if answer is None else verdict_of(answer)
        match verdict:
            case "allow":
                return replace(here, granted=request.needs)
            case "deny":
                await turn.record(Result(call.id, DENIED, failed=True))
                return None
            case "ask":
                await record_question(turn, call, request)
                return None


async def record_question(turn: Turn, call: Call, request: ApprovalRequest) -> None:
    """Put a call to a person: the turn waits from here on."""
    # Where nothing more is needed, a rule wants each call asked about: no yes reaches further.
    choices = ANSWERS if request.needs else (ONCE, NO)
    await turn.record(
        Asked(f"ask-{call.id}", render_approval(request), call.id, choices, request.needs), key=f"ask/{call.id}"
    )
    failpoint("approval_pending")


async def deny_unreachable(turn: Turn, environment: ToolEnvironment) -> bool:
    """A question that nobody can answer is a no. True when at least one was answered so."""
    state = turn.state()
    answers = environment.answer_unreachable(turn.session, tuple(state.questions.values()), state.address)
    for answered in answers:
        await turn.record(answered, key=f"answer/{answered.ask}")
    return bool(answers)


def _plain_request(call: Call, context: ToolContext) -> ApprovalRequest:
    """A call that wants nothing beyond what every call may do; a rule may still speak of it."""
    command = call.args.get("command")
    text = command if isinstance(command, str) else msgspec.json.encode(call.args).decode()
    return ApprovalRequest(call.tool, text[:_MAX_COMMAND_CHARS], (), context.session.workspace)


def verdict_of(answer: str) -> Verdict:
    """What an answer to an ask comes to."""
    return "deny" if answer == NO else "allow"
