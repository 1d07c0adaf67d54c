"""The next step of a session, decided from its journal alone.

Running a turn and recovering one are the same: fold the journal, decide, do the step.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from hashlib import blake2b

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outrider.core.approvals import AccessDecision, ApprovalRequest, decision_of_answer, request_digest
from outrider.core.events import (
    Answered,
    Asked,
    Begun,
    Bound,
    Changed,
    Compacted,
    Ended,
    Entry,
    Input,
    Reply,
    Result,
    Resumed,
    Started,
)
from outrider.core.types import Call, Replay, ToolSpec, Usage

MAX_RESUMES = 3


class AnsweredQuestion(Struct, frozen=True):
    """A question with its answer. The answer holds for what was asked, and for nothing else."""

    asked: Asked
    answer: str
    person: str
    """Empty when nobody answered, which means no."""

    def holds_for(self, request: ApprovalRequest) -> bool:
        """Whether this is what was asked. A question of 0.1.0 has no digest, and showed neither folder nor stdin."""
        if not self.asked.digest:
            return not request.details and request.needs == self.asked.needs
        return self.asked.digest == request_digest(request)

    @property
    def decision(self) -> AccessDecision:
        return decision_of_answer(self.answer, is_by_person=bool(self.person))


class InputAddress(Struct, frozen=True):
    """Where the answer to one input goes."""

    seq: int
    address: str
    is_notice: bool


class State(Struct, frozen=True):
    """Everything the next step depends on."""

    head: int = 0
    saw: int = 0
    newest_input: int = 0
    is_open: bool = False
    owes_reply: bool = False
    resumes: int = 0
    """Crashes in this turn since its last reply."""
    calls: tuple[Call, ...] = ()
    """Calls of the last reply that have no result yet."""
    begun: frozenset[str] = frozenset()
    asked_again: frozenset[str] = frozenset()
    """Calls that had begun when a question about them was asked, and have not begun once more since."""
    address: str = ""
    """Where the turn delivers its answer: the address of its newest input from a person. A turn with notices only has
    the address of the first one. Between two turns, the same of the inputs that wait."""
    has_person: bool = False
    """Whether an input of the turn is from a person."""
    unseen: tuple[InputAddress, ...] = ()
    """Inputs that no reply has seen, in order. When the turn ends without them, they belong to the next one."""
    questions: Mapping[str, Asked] = {}
    """Questions without an answer."""
    answers: Mapping[str, AnsweredQuestion] = {}
    """Answers since the last reply, by the question."""
    client_tools: Mapping[str, ToolSpec] = {}
    """Tools that came with the newest input. The client that sent it runs their calls."""
    abandoned_calls: frozenset[str] = frozenset()
    """Calls of client tools that had no result when the next input came, and get none any more."""
    denials: int = 0
    """How many questions in a row got no answer from a person."""
    runtime: str = ""
    """The runtime of this turn."""
    threads: Mapping[str, Bound] = {}
    """The threads of this session in external runtimes, and the last entry that each knows."""
    settings: Mapping[str, str] = {}
    model: str = ""
    """The model this turn started with."""
    steps: int = 0
    """Replies in this turn."""
    usage: Usage = Usage()
    """Tokens of this turn."""
    cost: float = 0.0
    """Cost of this turn in dollars, as far as prices are known."""
    context: int = 0
    """Tokens of the last prompt and its reply; 0 when unknown or just compacted."""
    compacted: int = 0
    """The entry of the last compaction."""
    step_digest: str = ""
    last_step_digest: str = ""
    repeats: int = 0
    """How often in a row the model made the same calls and got the same results."""

    @property
    def has_unseen(self) -> bool:
        return self.newest_input > self.saw

    def answers_about(self, call: str) -> Sequence[AnsweredQuestion]:
        """The answers to questions about this call, in the order of the questions."""
        return [one for one in self.answers.values() if one.asked.call == call]

    def is_asked(self, call: str) -> bool:
        """Whether a question about this call has no answer yet."""
        return any(asked.call == call for asked in self.questions.values())


def fold(journal: Iterable[Entry], state: State = State()) -> State:  # noqa: B008 (State is frozen)
    """The state after these entries, from the beginning or from an earlier state."""
    return reduce(_apply, journal, state)


def _apply(state: State, entry: Entry) -> State:
    state = replace(state, head=entry.seq)
    match entry.body:
        case Input():
            return _after_input(state, entry.seq, entry.body)
        case Started(runtime=runtime, model=model):
            return replace(_reset_turn(state, is_open=True), runtime=runtime, model=model)
        case Resumed(crashed=crashed):
            # A turn that only waits for an answer did not cause the crash.
            return replace(state, resumes=state.resumes + (crashed and not _is_suspended(state)))
        case Bound(runtime=runtime):
            return replace(state, threads={**state.threads, runtime: entry.body})
        case Reply():
            return _after_reply(state, entry.body)
        case Begun(call=call):
            return replace(state, begun=state.begun | {call}, asked_again=state.asked_again - {call})
        case Result():
            return _after_result(state, entry.body)
        case Asked(ask=ask, call=call):
            again = state.asked_again | (state.begun & {call})
            return replace(state, questions={**state.questions, ask: entry.body}, asked_again=again)
        case Answered():
            return _after_answer(state, entry.body)
        case Compacted(usage=usage, cost=cost):
            spent = {"usage": state.usage + usage, "cost": state.cost + (cost or 0.0)}
            return replace(state, context=0, compacted=entry.seq, **spent)
        case Changed(name=name, value=value):
            return replace(state, settings={**state.settings, name: value})
        case Ended(saw=saw):
            current = {
                name: replace(bound, saw=entry.seq) for name, bound in state.threads.items() if name == state.runtime
            }
            ended = replace(state, saw=max(state.saw, saw), threads={**state.threads, **current})
            return _wait_for_next_turn(_reset_turn(ended, is_open=False))


def _is_suspended(state: State) -> bool:
    return bool(state.questions) or any(call.tool in state.client_tools for call in state.calls)


def _reset_turn(state: State, *, is_open: bool) -> State:
    return State(
        head=state.head,
        saw=state.saw,
        newest_input=state.newest_input,
        is_open=is_open,
        address=state.address,
        has_person=state.has_person,
        unseen=state.unseen,
        # A turn that notices started has no client that could run its tools.
        client_tools=state.client_tools if state.has_person or not is_open else {},
        threads=state.threads,
        settings=state.settings,
        context=state.context,
        compacted=state.compacted,
    )


def _wait_for_next_turn(ended: State) -> State:
    """The address of the next turn depends on the inputs that the ended one did not see, and on nothing before them."""
    waiting = tuple(one for one in ended.unseen if one.seq > ended.saw)
    return reduce(_add_address, waiting, replace(ended, address="", has_person=False, unseen=()))


def _add_address(state: State, new: InputAddress) -> State:
    """A person moves the turn to their address; a notice never does. Without an address, a person joins the others."""
    added = replace(state, unseen=(*state.unseen, new))
    if new.is_notice:
        is_first = not (state.is_open or state.unseen)
        return replace(added, address=new.address) if is_first else added
    current = state.address if state.is_open or state.has_person else ""
    return replace(added, address=new.address or current, has_person=True)


def _after_input(state: State, seq: int, body: Input) -> State:
    state = _add_address(state, InputAddress(seq, body.address, is_notice=body.source != "person"))
    client_tools = {spec.name: spec for spec in body.tools} if body.source == "person" else state.client_tools
    abandoned = state.abandoned_calls | {
        c.id for c in state.calls if body.source == "person" and c.tool in state.client_tools
    }
    return replace(
        state,
        newest_input=seq,
        client_tools=client_tools,
        abandoned_calls=abandoned,
    )


def _after_reply(state: State, reply: Reply) -> State:
    same = bool(state.step_digest) and state.step_digest == state.last_step_digest
    return replace(
        state,
        saw=reply.saw,
        unseen=tuple(one for one in state.unseen if one.seq > reply.saw),
        calls=reply.calls,
        begun=frozenset[str](),
        asked_again=frozenset[str](),
        answers={},
        resumes=0,
        owes_reply=False,
        steps=state.steps + 1,
        usage=state.usage + reply.usage,
        cost=state.cost + (reply.cost or 0.0),
        context=reply.usage.input + reply.usage.output,
        last_step_digest=state.step_digest,
        step_digest=_digest(*((call.tool, call.args) for call in reply.calls)) if reply.calls else "",
        repeats=state.repeats + 1 if same else 0,
    )


def _after_answer(state: State, answered: Answered) -> State:
    question = state.questions.get(answered.ask)
    answers = state.answers
    if question:
        answers = {**answers, answered.ask: AnsweredQuestion(question, answered.answer, answered.person)}
    return replace(
        state,
        questions={id: body for id, body in state.questions.items() if id != answered.ask},
        answers=answers,
        denials=0 if answered.person else state.denials + 1,
    )


def _after_result(state: State, result: Result) -> State:
    return replace(
        state,
        calls=tuple(call for call in state.calls if call.id != result.call),
        owes_reply=True,
        step_digest=_digest(state.step_digest, result.text, result.failed),
    )


def _digest(*parts: object) -> str:
    return blake2b(msgspec.json.encode(parts, order="sorted"), digest_size=8).hexdigest()


class Bounds(Struct, frozen=True):
    """The limits of one turn."""

    steps: int = 60
    repeats: int = 3
    spend: float = 5.0
    """Dollars; 0 for no limit."""
    denials: int = 3


class Begin(Struct, frozen=True):
    """Start a turn: an input waits and no turn is open."""


class AskModel(Struct, frozen=True):
    """Ask the model for a reply."""


class RunCalls(Struct, frozen=True):
    calls: tuple[Call, ...]


class ReconcileCalls(Struct, frozen=True):
    """Find out what happened to these calls: they began before a crash, or their client is gone."""

    calls: tuple[Call, ...]


class AwaitAnswer(Struct, frozen=True):
    """Wait, with the turn open: every remaining call needs a person's answer or a result from the client."""


class Finish(Struct, frozen=True):
    """End the turn: the model is done."""


class Stop(Struct, frozen=True):
    """End the turn: a limit is reached."""

    reason: str


class Idle(Struct, frozen=True):
    """Do nothing: no turn is open and no input waits."""


Step = Begin | AskModel | RunCalls | ReconcileCalls | AwaitAnswer | Finish | Stop | Idle


def decide(state: State, replay: Mapping[str, Replay], bounds: Bounds = Bounds()) -> Step:  # noqa: B008 (frozen)
    """The next step. Total: every state has one."""
    if not state.is_open:
        return Begin() if state.has_unseen else Idle()
    if state.resumes > MAX_RESUMES:
        return Stop(f"stopped: Outrider crashed {state.resumes} times in a row during this turn")
    waiting = {question.call for question in state.questions.values()}
    # A program may ask again about a call that has begun; until there is an answer, it waits.
    begun = state.begun - waiting
    interrupted = {c.id for c in state.calls if c.id in begun and replay.get(c.tool) is not Replay.SAFE}
    if lost := tuple(c for c in state.calls if c.id in interrupted | state.abandoned_calls):
        return ReconcileCalls(lost)
    if state.calls:
        ready = tuple(call for call in state.calls if call.id not in waiting and call.tool not in state.client_tools)
        return _limit_reached(state, bounds) or (RunCalls(ready) if ready else AwaitAnswer())
    if state.has_unseen or state.owes_reply:
        return _limit_reached(state, bounds) or AskModel()
    return Finish()


def _limit_reached(state: State, bounds: Bounds) -> Stop | None:
    if state.steps >= int(state.settings.get("steps") or bounds.steps):
        return Stop(f"stopped after {state.steps} steps, the limit of one turn (limits.steps)")
    if state.denials >= bounds.denials:
        return Stop(f"stopped: {state.denials} questions in a row were not answered")
    if state.repeats >= bounds.repeats:
        times, tools = state.repeats + 1, ", ".join(dict.fromkeys(call.tool for call in state.calls)) or "a tool"
        return Stop(
            f"stopped: the model made the same call {times} times in a row ({tools}), each with the same result"
            " (limits.repeats)"
        )
    if bounds.spend and state.cost >= bounds.spend:
        return Stop(f"stopped: this turn has cost ${state.cost:.2f}; its limit is ${bounds.spend:.2f} (limits.spend)")
    return None
