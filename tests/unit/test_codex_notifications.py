"""The notifications of a Codex turn: tokens counted once, the marker of an aborted turn, searches with their query."""

import anyio
import msgspec
import pytest
from msgspec import Raw

from outrider.core.events import Delta, Reply, Result
from outrider.core.prompt import transcript
from outrider.core.types import Usage
from outrider.runtimes.codex.notifications import ItemTracker, NotificationReader
from outrider.runtimes.codex.watchdog import TurnWatchdog
from outrider.runtimes.external.recorder import TurnRecorder
from outrider.runtimes.jsonrpc.connection import RpcNotification
from tests.support.turns import MemoryTurn

pytestmark = pytest.mark.anyio
_TURN = "turn-2"
_GRACE = 10.0


class ReportedTurn:
    """A turn of which a test reports what Codex would."""

    def __init__(self, usage: Usage | None = None) -> None:
        self.turn = MemoryTurn("codex")
        self.recorder = TurnRecorder(self.turn, "codex", lambda text: text)
        self.recorder.input_seen(1)
        self.watchdog = TurnWatchdog(anyio.current_time(), 86_400, 86_400, _GRACE)
        self.reader = NotificationReader(self.turn, self.recorder, self.watchdog, ItemTracker(_TURN))
        self.reader.set_thread_usage(usage)

    async def report(self, method: str, turn: str = _TURN, **params: object) -> None:
        content = {"threadId": "t", "turnId": turn, **params}
        await self.reader.handle(RpcNotification(method, Raw(msgspec.json.encode(content))))

    async def report_tokens(self, total: int, last: int, turn: str = _TURN) -> None:
        usage = {"total": {"inputTokens": total}, "last": {"inputTokens": last}}
        await self.report("thread/tokenUsage/updated", turn, tokenUsage=usage)

    async def report_item(self, method: str, kind: str, **fields: object) -> None:
        await self.report(method, item={"type": kind, "id": "i", **fields})

    async def used(self) -> int:
        """The input tokens in the journal, after the end of the turn."""
        await self.recorder.close()
        return sum(entry.body.usage.input for entry in self.turn.entries if isinstance(entry.body, Reply))

    @property
    def is_aborted(self) -> bool:
        """Whether the turn is aborted when nothing more is reported."""
        return self.watchdog.check(anyio.current_time() + _GRACE) == "aborted"


async def test_a_compaction_in_the_middle_is_counted_once() -> None:
    codex = ReportedTurn(Usage(5_000))
    await codex.report_tokens(6_000, 1_000)
    await codex.report_item("item/started", "contextCompaction")
    await codex.report_tokens(6_000, 1_000)
    await codex.report_tokens(6_070, 70)
    await codex.report_tokens(6_070, 0)
    await codex.report_item("item/completed", "contextCompaction")
    await codex.report_tokens(6_100, 30)
    assert await codex.used() == 1_100
    assert codex.reader.thread_usage == Usage(6_100)


async def test_the_total_of_a_resumed_thread_does_not_count() -> None:
    codex = ReportedTurn()
    await codex.report_tokens(9_000, 50, turn="turn-1")
    await codex.report_tokens(9_010, 10)
    assert await codex.used() == 10


async def test_a_codex_that_reports_no_total_at_a_resume_counts_from_its_first_response() -> None:
    codex = ReportedTurn()
    await codex.report_tokens(9_010, 10)
    await codex.report_tokens(9_030, 20)
    assert await codex.used() == 30


async def test_its_compaction_before_the_first_response_reports_the_total_of_before() -> None:
    codex = ReportedTurn()
    await codex.report_item("item/started", "contextCompaction")
    await codex.report_tokens(9_000, 50)
    await codex.report_tokens(9_007, 7)
    await codex.report_item("item/completed", "contextCompaction")
    await codex.report_tokens(9_010, 3)
    assert await codex.used() == 10


async def test_a_codex_without_totals_is_counted_by_its_responses() -> None:
    codex = ReportedTurn(Usage())
    for _ in range(2):
        await codex.report("thread/tokenUsage/updated", tokenUsage={"last": {"inputTokens": 4}})
    assert await codex.used() == 8


async def test_a_total_that_cannot_be_read_is_made_up_for_by_the_next_one() -> None:
    codex = ReportedTurn(Usage(100))
    for total in ("many", None, {"inputTokens": "few"}):
        usage = {"total": total, "last": {"inputTokens": 4}}
        await codex.report("thread/tokenUsage/updated", tokenUsage=usage)
    await codex.report_tokens(120, 8)
    assert await codex.used() == 20


@pytest.mark.behaviour("A12")
@pytest.mark.parametrize("mark", ["<turn_aborted>", "<turn_aborted/>"])
@pytest.mark.parametrize("size", [1, 3, 100])
async def test_the_marker_aborts_a_turn_unless_something_follows(mark: str, size: int) -> None:
    codex = ReportedTurn()
    text = f"so {mark}"
    for at in range(0, len(text), size):
        assert not codex.is_aborted
        await codex.report("item/agentMessage/delta", itemId="m", delta=text[at : at + size])
    assert codex.is_aborted
    await codex.report("item/agentMessage/delta", itemId="m", delta=" it is")
    assert codex.is_aborted
    await codex.report_item("item/completed", "agentMessage", id="m", text=f"{text} it is")
    assert codex.is_aborted
    await codex.report_item("item/started", "reasoning", id="r")
    assert not codex.is_aborted
    assert codex.watchdog.check(anyio.current_time()) == ""


@pytest.mark.behaviour("A3")
async def test_a_web_search_is_recorded_with_its_query_which_comes_at_its_end() -> None:
    codex = ReportedTurn()
    await codex.report_item("item/started", "webSearch", query="")
    assert (codex.turn.deltas, len(codex.turn.entries)) == ([Delta("web_search", "call")], 2)
    await codex.report_item("item/completed", "webSearch", query="the price of plums")
    assert [call.args for m in transcript(codex.turn.entries) for call in getattr(m, "calls", ())] == [
        {"query": "the price of plums"}
    ]
    assert isinstance(codex.turn.entries[-1].body, Result)


@pytest.mark.parametrize("retries", [True, False])
async def test_an_error_is_open_until_something_follows_it(retries: bool) -> None:
    codex = ReportedTurn()
    await codex.report("error", willRetry=retries, error={"message": "Reconnecting... 1/5"})
    assert codex.reader.open_error
    await codex.report("item/agentMessage/delta", itemId="m", delta="so")
    assert codex.reader.open_error is None


async def test_a_message_that_was_begun_again_is_not_recorded_as_the_partial_one() -> None:
    codex = ReportedTurn()
    await codex.report("item/agentMessage/delta", itemId="m1", delta="I shall")
    await codex.report_item("item/started", "agentMessage", id="m2")
    await codex.report("item/agentMessage/delta", itemId="m2", delta="As you wish")
    await codex.reader.record_partial_messages()
    await codex.recorder.close()
    assert [entry.body.text for entry in codex.turn.entries if isinstance(entry.body, Reply)] == ["As you wish"]
    assert [delta.kind for delta in codex.turn.deltas] == ["text", "reset", "text"]


@pytest.mark.behaviour("A12")
def test_the_time_after_the_marker_counts_from_what_was_reported_last() -> None:
    watchdog = TurnWatchdog(0.0, 86_400, 86_400, _GRACE)
    watchdog.abort_marked(1.0)
    watchdog.abort_marked(9.0)
    assert [watchdog.check(now) for now in (11.5, 18.9, 19.0)] == ["", "", "aborted"]
    assert watchdog.seconds_to_next_check(18.9) == pytest.approx(0.1)
    watchdog.answer_pending(18.9)
    assert watchdog.check(30.0) == ""
    watchdog.answer_sent(30.0)
    watchdog.abort_refuted()
    assert watchdog.check(60.0) == ""
