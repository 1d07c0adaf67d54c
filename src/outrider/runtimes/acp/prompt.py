"""What an agent is told when a prompt begins: the past it has not seen, what was cut off, what is asked of it. Pure."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from outrider.core.plan import State
from outrider.core.prompt import Message, Transcript, UserMessage
from outrider.core.types import Call
from outrider.runtimes.external import history
from outrider.runtimes.external.recorder import clip_middle

NAME = "acp"
INTERRUPTED = (
    "[Your work on the request below was cut off. Some of it may be done already: look before you repeat anything, "
    "and go on from there."
)
ALLOWED = "the person has allowed it since: do it again"
DENIED = "the person did not allow it: do without it"
OUTCOME_UNKNOWN = "it may or may not have happened"
_MAX_ARGS = 500


class InterruptedCall(Struct, frozen=True):
    """What is known of a call that was cut off."""

    call: Call
    note: str


class PromptStart(Struct, frozen=True):
    """What a prompt begins with."""

    inputs: tuple[UserMessage, ...]
    saw: int
    """The newest of them."""
    preamble: str = ""
    """What is said first."""


def prompt_name(state: State) -> str:
    """A name for the prompt that gives the agent all inputs there are now; unlike any other of this session."""
    return f"prompt-{state.newest_input}.{state.head}"


def is_interrupted(state: State, prompt: str) -> bool:
    """Whether the agent was given `prompt` in this turn and has not come to its end, as far as is written down."""
    given = int(prompt.removeprefix("prompt-").partition(".")[0]) if prompt else 0
    return given > state.saw or (state.steps > 0 and bool(prompt or state.calls or state.owes_reply))


def is_done(state: State) -> bool:
    """Whether the agent has come to the end of all that it was given in this turn."""
    bound = state.threads.get(NAME)
    is_idle = not (state.has_unseen or state.calls or state.owes_reply)
    return is_idle and not is_interrupted(state, bound.turn if bound else "")


def build_prompt(
    state: State, transcript: Transcript, unknown: Sequence[Message], cut: Sequence[InterruptedCall] | None
) -> PromptStart:
    """For a prompt that goes on with this turn. `cut` is None when nothing was cut off."""
    seen = transcript.before(state.head)
    inputs = [message for _, message in transcript.unseen()]
    if cut is not None:
        last = next((message for message in reversed(seen) if isinstance(message, UserMessage)), None)
        inputs = [last, *inputs] if last and state.steps else inputs
    parts = (history.render_history(unknown), "" if cut is None else _render_interrupted(cut))
    return PromptStart(tuple(inputs), state.newest_input, "\n\n".join(part for part in parts if part))


def _render_interrupted(interrupted: Sequence[InterruptedCall]) -> str:
    lines = [f"- {one.call.tool} {_render_args(one.call)}: {one.note}" for one in interrupted]
    return "\n".join((INTERRUPTED, *lines)) + "]"


def _render_args(call: Call) -> str:
    return clip_middle(msgspec.json.encode(call.args).decode(), _MAX_ARGS)
