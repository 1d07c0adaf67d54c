"""What a turn costs over HTTP: `outrider up` beside the same model asked directly, with many clients and many sessions.

The model is the scripted server in a process of its own, which answers at once; for streams, word by word. What it is
asked directly is, byte for byte, what Outrider asks it.
"""

import itertools
import statistics
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from bench.load import Load, Next, Request, Response, load
from bench.serving import Home, Process, model, trivial
from bench.table import Row, progress
from outrider.testing.scripted_server.wire_format import Json

CROWDS = (1, 8, 32, 100)
STREAMS = 500
WORDS, PAUSE = 20, 0.25
"""Of a slow reply: how many words, and seconds before each."""
STORY = " ".join(f"word{n}" for n in range(WORDS))
SETTINGS = {"limits.turns": str(1_000)}
SCRIPT: Json = {
    "rules": [{"when": "story", "reply": {"text": STORY, "delay": PAUSE}}, {"when": ".", "reply": "ok"}],
}
KINDS = ("chat", "chat, streamed", "responses")
CHAT = "/v1/chat/completions"


class Asker:
    """Makes requests, each in a new session or all of one client in the same."""

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers
        self._loads = itertools.count()

    def of(self, kind: str, *, is_long: bool) -> Next:
        which = next(self._loads)

        def ask(number: int, last: Response | None) -> Request:
            session = f"client-{which}-{number}"
            if kind == "responses":
                named = {"conversation": session} if is_long else {}
                return Request("/v1/responses", {"model": "outrider", "input": "hello", **named}, self._headers)
            named = {"x-session-id": session} if is_long else {}
            return Request(CHAT, message("hello", is_stream="streamed" in kind), self._headers | named)

        return ask

    def story(self, number: int, last: Response | None) -> Request:
        return Request(CHAT, message("tell a story", is_stream=True), self._headers, is_timed=True)

    def get(self, path: str) -> Next:
        return lambda number, last: Request(path, None, self._headers)


def message(words: str, *, is_stream: bool) -> Json:
    return {"model": "outrider", "stream": is_stream, "messages": [{"role": "user", "content": words}]}


def is_answered(response: Response) -> bool:
    """Whether it is a whole answer with the model's words."""
    if response.body.startswith(b":"):
        return (
            response.status == 200
            and b'"content":"ok"' in response.body
            and response.body.endswith(b"data: [DONE]\n\n")
        )
    return response.status == 200 and b'"ok"' in response.body and b'"error":{' not in response.body


def is_story(response: Response) -> bool:
    """Whether it is the whole story, its words in order."""
    return response.status == 200 and story_of(response) == STORY and response.body.endswith(b"data: [DONE]\n\n")


def story_of(response: Response) -> str:
    lines = [line[6:] for line in response.body.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for line in lines for choice in msgspec.json.decode(line)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def is_ok(response: Response) -> bool:
    return response.status == 200


async def api(count: int, sessions: Sequence[int]) -> list[Row]:
    """About `count` requests per row; memory after these numbers of sessions. Raises if any answer is wrong."""
    limits = ", ".join(f"{name} = {value}" for name, value in SETTINGS.items())
    rows = [Row("api", "set for this bench", limits, "and a key for 1,000,000 requests a minute, 1,000 at once")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with trivial(folder) as nothing, model(folder, SCRIPT) as (_, url):
            home = Home(folder, url, SETTINGS)
            with home.up() as (up, ours):
                rows.append(Row("memory", "outrider up, idle", f"{up.resident} MB", "resident"))
                rows += await _rates(home, (nothing, url, ours), up, count)
                rows += await _streams(home, (url, ours), up)
        with tempfile.TemporaryDirectory() as other, model(folder, SCRIPT) as (_, url):
            rows += await _many(Home(Path(other), url, SETTINGS), sessions)
    return rows


async def _rates(home: Home, urls: tuple[str, str, str], up: Process, count: int) -> list[Row]:
    nothing, url, ours = urls
    asker, rows = Asker(home.headers), list[Row]()
    await load(ours, 4, 10, asker.of("chat", is_long=False), is_answered)
    # What Outrider asked the model: so that both are asked the same.
    asked = await load(url, 1, 1, lambda number, last: Request("/requests"), is_ok)
    prompt: Json = msgspec.json.decode(asked.responses[0].body)[-1]["body"]

    async def direct(clients: int) -> Load:
        return await load(url, clients, max(1, count // clients), lambda number, last: Request(CHAT, prompt), is_ok)

    for clients in CROWDS:
        progress(f"baselines, {clients} at once")
        bare = await load(nothing, clients, max(1, count // clients) * 5, asker.get("/"), is_ok)
        rows.append(Row("api", f"baseline: client and bare uvicorn, {clients} at once", str(bare)))
        rows.append(Row("api", f"baseline: the model asked directly, {clients} at once", str(await direct(clients))))
    for kind, is_long, clients in itertools.product(KINDS, (False, True), CROWDS):
        what = f"{kind}, {'one session a client' if is_long else 'each a new session'}, {clients} at once"
        progress(what)
        # Right before and right after: what else the machine does changes from minute to minute.
        before, cpu = await direct(clients), up.cpu
        found = await load(ours, clients, max(1, count // clients), asker.of(kind, is_long=is_long), is_answered)
        cpu = (up.cpu - cpu) / len(found.responses) * 1000
        alone = statistics.mean((before.rate, (await direct(clients)).rate))
        rows.append(Row("api", what, str(found), f"the model alone: {alone:,.0f} /s then; {cpu:.1f} ms CPU a turn"))
    return rows


async def _streams(home: Home, urls: tuple[str, str], up: Process) -> list[Row]:
    url, ours = urls
    rows: list[Row] = []
    progress(f"{STREAMS} streams at once")
    direct = Request(CHAT, message("tell a story", is_stream=True), is_timed=True)
    before = up.resident
    loads = (
        ("the model asked directly", await load(url, STREAMS, 1, lambda number, last: direct, is_story)),
        ("outrider up", await load(ours, STREAMS, 1, Asker(home.headers).story, is_story)),
    )
    for who, found in loads:
        firsts = sorted(one.first * 1000 for one in found.responses)
        gaps = sorted((b - a) * 1000 for one in found.responses for a, b in pairwise(_word_times(one)))
        what = f"{STREAMS} streams at once, {who}"
        rows.append(Row("streams", f"{what}: first byte", _format_spread(firsts)))
        rows.append(
            Row("streams", f"{what}: from word to word", _format_spread(gaps), f"the model waits {PAUSE * 1000:.0f} ms")
        )
    held = f"{before} MB before"
    return [*rows, Row("memory", f"outrider up, after {STREAMS} streams at once", f"{up.resident} MB", held)]


def _word_times(response: Response) -> list[float]:
    return [at for at, piece in response.pieces if b'"content":"word' in piece or b'"content":" word' in piece]


def _format_spread(figures: Sequence[float]) -> str:
    p95, p99 = (figures[int(len(figures) * share)] for share in (0.95, 0.99))
    return f"{statistics.median(figures):.0f} ms (p95 {p95:.0f}, p99 {p99:.0f}, max {figures[-1]:.0f})"


async def _many(home: Home, sessions: Sequence[int]) -> list[Row]:
    """What is left behind by sessions that have ended: in memory, at the next start, and in lists and searches."""
    rows: list[Row] = []
    asker = Asker(home.headers)
    with home.up() as (up, url):
        rows.append(Row("start-up", "outrider up, an empty home", f"{up.seconds * 1000:.0f} ms"))
        done = 0
        for total in sessions:
            progress(f"{total:,} sessions")
            found = await load(url, 32, (total - done) // 32, asker.of("chat", is_long=False), is_answered)
            done += len(found.responses)
            rows.append(Row("memory", f"outrider up, after {done:,} sessions", f"{up.resident} MB", f"last: {found}"))
    with home.up() as (up, url):
        rows.append(Row("start-up", f"outrider up, {done:,} sessions", f"{up.seconds * 1000:.0f} ms"))
        first = await load(url, 1, 1, asker.get("/v1/sessions/search?q=hello"), is_ok)
        rows.append(Row("many", f"the first search of {done:,} sessions", f"{first.milliseconds(0):.0f} ms", "indexes"))
        for what, path in (("the latest 100", "/v1/sessions?limit=100"), ("search", "/v1/sessions/search?q=hello")):
            found = await load(url, 1, 50, asker.get(path), is_ok)
            rows.append(Row("many", f"{what} of {done:,} sessions", str(found)))
        rows.append(Row("memory", f"outrider up, started on {done:,} sessions", f"{up.resident} MB", "after searches"))
    return rows
