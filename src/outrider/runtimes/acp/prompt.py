"""Contents of a prompt to an ACP agent: history it has not seen, interrupted calls, and the new inputs. Pure."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from outrider.core.plan import State
from outrider.core.prompt import Transcript, UserMessage
from outrider.core.types import Call
from outrider.runtimes.external.history import History
from outrider.runtimes.external.images import ImageContent
from outrider.runtimes.external.recorder import clip_middle

NAME = "acp"
INTERRUPTED = (
    "[Your work on the request below was cut off. Some of it may be done already: check before you repeat anything, "
    "and continue from there."
)
ALLOWED = "the person has allowed it since: do it again"
OUTCOME_UNKNOWN = "it may or may not have happened"
_MAX_ARGS = 500


class InterruptedCall(Struct, frozen=True):
    """A call that was interrupted, and what is known of it."""

    call: Call
    note: str


class PromptStart(Struct, frozen=True):
    inputs: tuple[UserMessage, ...]
    saw: int
    """The number of the newest input."""
    preamble: str = ""
    """Text before the inputs."""
    preamble_images: tuple[ImageContent, ...] = ()


def prompt_name(state: State) -> str:
    """A name for the prompt with all inputs up to now; unique in the session."""
    return f"prompt-{state.newest_input}.{state.head}"


def is_interrupted(state: State, prompt: str) -> bool:
    """Whether `prompt` was sent in this turn and its end is not recorded."""
    newest_input = int(prompt.removeprefix("prompt-").partition(".")[0]) if prompt else 0
    return newest_input > state.saw or (state.steps > 0 and bool(prompt or state.calls or state.owes_reply))


def is_done(state: State) -> bool:
    """Whether the agent has finished everything that it was sent in this turn."""
    bound = state.threads.get(NAME)
    is_idle = not (state.has_unseen or state.calls or state.owes_reply)
    return is_idle and not is_interrupted(state, bound.turn if bound else "")


def build_prompt(
    state: State, transcript: Transcript, history: History, interrupted: Sequence[InterruptedCall] | None
) -> PromptStart:
    """The next prompt of this turn. `history` is what the agent has not seen; `interrupted` is None when the turn was
    not interrupted."""
    seen = transcript.before(state.head)
    inputs = [message for _, message in transcript.unseen()]
    if interrupted is not None:
        last = next((message for message in reversed(seen) if isinstance(message, UserMessage)), None)
        inputs = [last, *inputs] if last and state.steps else inputs
    parts = [history.text]
    if interrupted is not None:
        args = [clip_middle(msgspec.json.encode(one.call.args).decode(), _MAX_ARGS) for one in interrupted]
        lines = [f"- {one.call.tool} {text}: {one.note}" for one, text in zip(interrupted, args, strict=True)]
        parts.append("\n".join((INTERRUPTED, *lines)) + "]")
    preamble = "\n\n".join(part for part in parts if part)
    return PromptStart(tuple(inputs), state.newest_input, preamble, tuple(history.images))
