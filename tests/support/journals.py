"""Random valid journals for property tests, with crashes and stops at any point."""

from collections.abc import Callable

from hypothesis import strategies as st

from outrider.core.compaction import choose_cut
from outrider.core.events import (
    Answered,
    Asked,
    Begun,
    Body,
    Compacted,
    Ended,
    Entry,
    Input,
    Reply,
    Result,
    Resumed,
    Started,
)
from outrider.core.plan import (
    AskModel,
    AwaitAnswer,
    Begin,
    Bounds,
    Finish,
    Idle,
    ReconcileCalls,
    RunCalls,
    Stop,
    decide,
    fold,
)
from outrider.core.prompt import UNKNOWN, Transcript
from outrider.core.types import Call, Reasoning, Replay, Usage, call_id

REPLAY = {"look": Replay.SAFE, "pay": Replay.NEVER}
LOOSE = Bounds(steps=1000, repeats=1000, spend=0)

texts = st.sampled_from(["", "hi", "two\nlines", "emoji 🎉", "x" * 300])


def entries(*bodies: Body) -> list[Entry]:
    """A journal of these bodies."""
    return [Entry(seq, 1_000 * seq, body) for seq, body in enumerate(bodies, 1)]


class _Growing:
    def __init__(self, draw: Callable[[st.SearchStrategy[object]], object]) -> None:
        self.draw = draw
        self.journal: list[Entry] = []

    def add(self, *bodies: Body) -> None:
        for body in bodies:
            seq = len(self.journal) + 1
            self.journal.append(Entry(seq, 1_000 * seq, body))

    def chance(self, one_in: int) -> bool:
        return self.draw(st.integers(0, one_in - 1)) == 0

    def text(self) -> str:
        return str(self.draw(texts))

    def grow(self) -> None:
        state = fold(self.journal)
        if self.chance(5):
            self.add(Input(self.text() or "more"))
        if state.is_open and self.chance(12):
            self.add(Resumed(crashed=self.chance(2)))
        elif state.is_open and self.chance(12):
            self.add(Ended("interrupted", len(self.journal), "stopped", self.text()))
        elif state.is_open and self.chance(15):
            self.add(Ended("failed", len(self.journal), "no key"))
        else:
            self.step()

    def step(self) -> None:
        match decide(fold(self.journal), REPLAY, LOOSE):
            case Begin():
                self.add(Started())
            case AskModel():
                self.ask()
            case RunCalls(calls=calls):
                self.run(calls[0])
            case ReconcileCalls(calls=calls):
                self.add(*(Result(call.id, UNKNOWN, failed=True) for call in calls))
            case Finish():
                self.add(Ended("done", fold(self.journal).saw))
            case Stop(reason=reason):
                self.add(Ended("failed", len(self.journal), reason))
            case AwaitAnswer():
                self.add(*(Answered(ask, "no", "owner") for ask in fold(self.journal).questions))
            case Idle():
                self.add(Input(self.text() or "next"))

    def ask(self) -> None:
        if self.chance(10):
            self.compact()
        saw = len(self.journal)
        for _ in range(2):
            if self.chance(5):
                self.add(Input("typed while it wrote"))
        count = int(str(self.draw(st.sampled_from([0, 0, 1, 1, 2, 3]))))
        tools = [str(self.draw(st.sampled_from(["look", "pay", "gone"]))) for _ in range(count)]
        calls = tuple(Call(call_id(saw, n), tool, {"n": n}) for n, tool in enumerate(tools))
        reasoning = (Reasoning("hm", "anthropic"),) if self.chance(4) else ()
        text = self.text() if calls else self.text() or "done"
        self.add(Reply(text, saw, calls, reasoning, "scripted", Usage(10, 5)))

    def run(self, call: Call) -> None:
        if not fold(self.journal).answers_about(call.id) and self.chance(6):
            self.add(Asked(f"ask-{call.id}", "may it?", call.id))
            return
        if REPLAY.get(call.tool) is Replay.NEVER:
            self.add(Begun(call.id))
            if self.chance(4):
                self.add(Resumed())
                return
        self.add(Result(call.id, self.text(), failed=self.chance(4)))

    def compact(self) -> None:
        transcript = Transcript()
        transcript.add(self.journal)
        if (upto := choose_cut(transcript)) is not None:
            self.add(Compacted(upto, "what happened before"))


@st.composite
def journals(draw: Callable[[st.SearchStrategy[object]], object], most: int = 40) -> list[Entry]:
    """A journal cut at any entry."""
    growing = _Growing(draw)
    growing.add(Input("hello"))
    for _ in range(int(str(draw(st.integers(0, most))))):
        growing.grow()
    cut = int(str(draw(st.integers(0, len(growing.journal)))))
    return growing.journal[:cut]
