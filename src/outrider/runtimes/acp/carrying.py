"""Carries one turn: opens or takes up the agent's session, settles what was cut off, and prompts."""

import base64
from collections.abc import Mapping, Sequence

import anyio

from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Bound, Delta, Reply
from outrider.core.ports import Turn
from outrider.core.prompt import UNKNOWN, Message, UserMessage
from outrider.runtimes.acp.deeds import ENDS, Wanted, changed, deed_of, outcome_of
from outrider.runtimes.acp.faults import CANNOT_GO_ON, STOPS, wants_login
from outrider.runtimes.acp.hearing import Hearing, Settled
from outrider.runtimes.acp.process import Agent, Prompting
from outrider.runtimes.acp.wire import Prompted, Update
from outrider.runtimes.acp.words import (
    ALLOWED,
    DENIED,
    NAME,
    NOT_KNOWN,
    Beginning,
    Known,
    beginning,
    is_cut_off,
    prompt_name,
)
from outrider.runtimes.calls import meaning
from outrider.runtimes.jsonrpc import ChildGone, RpcError
from outrider.runtimes.jsonrpc.group import open_group
from outrider.runtimes.kit import Kit
from outrider.runtimes.outside.asking import Asking, News
from outrider.runtimes.outside.ledger import Ledger, Outcome, call_id

_PROBE = 5.0
"""Seconds an agent has at least to say that it lives."""
_NOT_TOLD = "the agent did not tell what came of this"
_NOT_RUN = "not run: the turn was set aside until the question was answered"


class Carrying:
    """One turn in the hands of one agent."""

    def __init__(self, turn: Turn, agent: Agent, kit: Kit) -> None:
        self._turn = turn
        self._agent = agent
        self._kit = kit
        self._ledger = Ledger(turn, NAME, kit.place.redact)
        self._news = News(turn)
        self._answered: list[Settled] = []
        asking = Asking(turn, kit.place, self._news)
        self._hearing = Hearing(turn, agent, self._ledger, asking, self._answered)

    async def run(self, *, has_died: bool = False) -> None:
        """Prompt the agent with what it has not seen, and hear it out.

        `has_died`: it died in the midst of this turn and is another one now. Raises Parked, Refused, RpcError,
        Unavailable; Failed when the prompt did; Died when the agent did and can go on in another process.
        """
        bound = self._turn.state().threads.get(NAME)
        is_cut = has_died or is_cut_off(self._turn.state(), bound.turn if bound else "")
        thread, retold = await self._open(bound, is_cut=is_cut)
        is_new = bound is None or bound.thread != thread
        unknown = self._unknown(bound if bound and not is_new else None)
        known = await self._settle(bound, retold)
        state = self._turn.state()
        begins = beginning(state, self._turn.transcript(), unknown, known if is_cut else None)
        if unknown:
            self._note(f"{self._agent.name} is told what was said here before")
        name = prompt_name(state)
        self._ledger.saw = begins.saw
        self._hearing.prompt = f"{thread}/{name}"
        blocks = self._blocks(begins)
        await self._turn.record(Bound(NAME, thread, name, begins.saw))
        await self._prompt(thread, blocks, may_die=not has_died)

    async def _open(self, bound: Bound | None, *, is_cut: bool) -> tuple[str, Sequence[Update]]:
        """The session to prompt, and what the agent told of what was done in it last."""
        agent, folder = self._agent, self._turn.session.workspace
        if bound and bound.thread in agent.threads:
            return bound.thread, ()
        if bound and (agent.can.can_load or agent.can.can_resume):
            try:
                return bound.thread, await agent.take_up(bound.thread, folder, is_retold=is_cut)
            except RpcError as error:
                if wants_login(error):
                    raise
                why = f"{agent.name} could not take up its session: {error}"
        else:
            why = f"{agent.name} cannot take up a session of an earlier process"
        if bound and is_cut:
            await self._settle(bound, ())
            await self._ledger.close()
            raise Refused(f"{CANNOT_GO_ON} ({why})")
        if bound:
            self._note(f"{why}. A new one begins")
        return await agent.open_session(folder), ()

    def _unknown(self, bound: Bound | None) -> Sequence[Message]:
        """What was said and done here that the agent's session has not seen; all of it when the session is new."""
        state, transcript = self._turn.state(), self._turn.transcript()
        if bound is None:
            return transcript.before(state.head)
        # What was done in this turn was done by the agent itself.
        return transcript.after(bound.saw) if not state.steps else ()

    async def _settle(self, bound: Bound | None, retold: Sequence[Update]) -> list[Known]:
        """Close what an earlier owner of this turn left open, and say what is known of it."""
        prompt = f"{bound.thread}/{bound.turn}" if bound else ""
        calls: dict[str, Wanted] = {}
        for update in retold:
            calls[update.tool_call_id] = changed(calls.get(update.tool_call_id), update)
        ended = {call_id(NAME, deed_of(w, prompt).item): w for w in calls.values() if w.status in ENDS}
        state, known = self._turn.state(), list[Known]()
        for call in state.calls:
            answer = state.answers.get(call.id)
            if answer is not None and call.id not in state.begun:
                self._answered.append(Settled(call, meaning(answer)))
                known.append(Known(call, ALLOWED if meaning(answer) == "allow" else DENIED))
                await self._ledger.settle(call, Outcome(_NOT_RUN, failed=True))
            elif wanted := ended.pop(call.id, None):
                await self._ledger.settle(call, outcome_of(wanted), deed_of(wanted, prompt).item)
            else:
                known.append(Known(call, NOT_KNOWN))
                await self._ledger.settle(call, Outcome(UNKNOWN, failed=True))
        for wanted in ended.values():
            await self._ledger.ended(deed_of(wanted, prompt), outcome_of(wanted))
        return known

    def _blocks(self, begins: Beginning) -> list[Mapping[str, str]]:
        texts = [begins.before] if begins.before else []
        images: list[Mapping[str, str]] = []
        for given in begins.inputs:
            texts.append(_labelled(given))
            for image in given.images:
                if not self._agent.can.can_see:
                    texts.append("[a picture that you cannot be shown]")
                    continue
                data = base64.b64encode(self._kit.blobs.get(image.blob)).decode()
                images.append({"type": "image", "data": data, "mimeType": image.media})
        return [{"type": "text", "text": "\n\n".join(texts)}, *images]

    async def _prompt(self, thread: str, blocks: Sequence[Mapping[str, str]], *, may_die: bool) -> None:
        agent, hearing = self._agent, self._hearing
        prompting = agent.prompt(thread, blocks)
        try:
            async with agent.heard(thread) as ear, open_group() as group:
                group.start_soon(self._news.listen, lambda: None)
                group.start_soon(self._until_over, thread, prompting)
                group.start_soon(self._watch)
                async for heard in ear:
                    await hearing.take(heard)
        finally:
            if not prompting.over.is_set():
                await agent.cancel(thread, prompting, hearing.asked)
        await self._finish(thread, prompting, may_die=may_die)

    async def _until_over(self, thread: str, prompting: Prompting) -> None:
        await prompting.over.wait()
        self._hearing.give_up_asking()
        await self._agent.all_heard(thread, prompting)

    async def _watch(self) -> None:
        """Silence is no verdict: when the agent should speak and does not, it is asked whether it lives."""
        quiet = float(self._kit.config.acp.quiet)
        while True:
            silent = anyio.current_time() - self._hearing.at
            if silent < quiet or self._hearing.is_waiting:
                await anyio.sleep(max(quiet - silent, 1.0))
                continue
            if not await self._agent.is_alive(min(max(quiet, _PROBE), 6 * _PROBE)):
                self._agent.retire(f"said nothing for {quiet:g} s and does not answer, so it was ended (acp.quiet)")
                return
            self._note(f"{self._agent.name} has said nothing for {quiet:g} s; it runs and answers")
            self._hearing.at = anyio.current_time()

    async def _finish(self, thread: str, prompting: Prompting, *, may_die: bool) -> None:
        can_go_on = self._agent.can.can_load or self._agent.can.can_resume
        match prompting.outcome:
            case Prompted(stop_reason=reason) as prompted:
                self._ledger.used(prompted.tokens())
                await self._hearing.settle(_NOT_TOLD)
                # Written down before its last words: whoever finds those finds that they were the last.
                await self._turn.record(Bound(NAME, thread, saw=self._ledger.saw))
                await self._hearing.speak()
                await self._ledger.close()
                if cut := STOPS.get(reason):
                    await self._turn.record(Reply("", self._ledger.saw, cut=cut))
                if reason == "cancelled":
                    raise Refused(f"{self._agent.name} ended this turn as cancelled, though nobody had stopped it")
            case ChildGone() as gone if may_die and can_go_on:
                raise Died(str(gone)) from gone
            case RpcError() | Unavailable() as error:
                await self._hearing.settle(UNKNOWN)
                await self._hearing.speak()
                await self._ledger.close()
                raise Failed(error)
            case None:
                raise Unavailable(f"{self._agent.name} was given up")

    def _note(self, text: str) -> None:
        self._turn.emit(Delta(text, "note"))


class Died(Exception):
    """The agent died in the midst of a prompt. What it had begun is as open as it was."""


class Failed(Exception):
    """A prompt ended with this error; all that was said and done is written down."""

    def __init__(self, error: RpcError | Unavailable) -> None:
        super().__init__(str(error))
        self.error = error


def _labelled(given: UserMessage) -> str:
    return given.text if given.source == "person" else f"[notice] {given.text}"
