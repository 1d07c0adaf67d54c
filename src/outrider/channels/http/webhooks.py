"""Tells a receiver, set by the home's owner, that background responses have ended.

Each is written down before its request is acknowledged and marked once the receiver took it. Cut in between, it is sent
again under the same id, so that a receiver which remembers ids hears it once.
"""

import logging
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio.abc import TaskStatus
from msgspec import Struct
from msgspec.structs import replace

from outrider.app.agent import Agent
from outrider.channels.http.openai_common import bounds_of
from outrider.channels.http.responses_render import Frame
from outrider.channels.http.server import is_loopback
from outrider.channels.http.webhooks_signed import find_secret, render_event, sign
from outrider.config.choice import Secret
from outrider.config.fail import failpoint
from outrider.core.errors import Refused, StoreDamaged, Unavailable
from outrider.core.events import Entry
from outrider.core.plan import fold
from outrider.core.ports import Session
from outrider.core.retry import RetryPolicy, delay
from outrider.models.errors import retry_after
from outrider.store.hooks import Hook, HookStore
from outrider.store.sqlite import SqliteStore

log = logging.getLogger("outrider.webhooks")

_GONE = 410
_DAY = 86_400.0
_LONGEST = 200
_STORE = 10.0
"""Seconds after which a store that was unavailable is tried again."""


class Target(Struct, frozen=True):
    """Who is told."""

    url: str
    secret: Secret

    @property
    def host(self) -> str:
        """All that may be said of the URL: its path may be a secret of the receiver's."""
        return urlsplit(self.url).netloc


class Terms(Struct, frozen=True):
    """How long and how often to try."""

    policy: RetryPolicy = RetryPolicy(attempts=13, first=5.0, factor=3.0, longest=21_600.0)
    """Its waits come to about a day."""
    patience: float = 15.0
    """Seconds the receiver has to answer."""
    at_once: int = 8
    """Attempts that may be under way."""


class Attempt(Struct, frozen=True):
    """What came of sending it once."""

    why: str = ""
    """Why it was not taken; empty when it was."""
    is_final: bool = False
    """Whether the receiver wants no more of it."""
    retry_after: float = 0.0


class Webhooks:
    """Those of one home."""

    def __init__(self, agent: Agent, target: Target, terms: Terms = Terms()) -> None:  # noqa: B008 (frozen)
        self._agent = agent
        self._store = hook_store(agent)
        self._target = target
        self._terms = terms
        self._room = anyio.CapacityLimiter(terms.at_once)
        self._held: set[str] = set()
        self._begin: Callable[[Hook], object] | None = None
        """None while not running: what is owed then is found in the store by the next run."""

    async def owe(self, session: Session, seq: int) -> None:
        """Tell the end of what was asked for at this entry. Durable when this returns; again, it is the same one."""
        self._take(await self._store.owe_hook(session.id, seq))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """See to all that is owed, now and from now on, until cancelled."""
        async with _client(self._target) as client, anyio.create_task_group() as group:
            self._begin = lambda hook: group.start_soon(self._see_to, client, hook)
            try:
                for hook in await self._store.pending_hooks():
                    self._take(hook)
                task_status.started()
                await anyio.sleep_forever()
            finally:
                self._begin = None

    def _take(self, hook: Hook) -> None:
        if self._begin and hook.state == "pending" and hook.id not in self._held:
            self._held.add(hook.id)
            self._begin(hook)

    async def _see_to(self, client: httpx2.AsyncClient, hook: Hook) -> None:
        try:
            if body := await self._event(hook):
                await self._deliver(client, hook, body)
        finally:
            self._held.discard(hook.id)

    async def _event(self, hook: Hook) -> bytes | None:
        """The event to send, once it has happened; None when it never will, or cannot be known."""
        while True:
            try:
                return await _end_of(self._agent.for_person(hook.person), hook)
            except Unavailable as error:
                log.debug("webhook %s: its session cannot be followed now: %s", hook.id, error)
                await anyio.sleep(_STORE)
            except StoreDamaged as error:
                log.error("webhook %s waits for the next start: %s", hook.id, error)
                return None
            except Refused as error:  # deleted, and the webhook with it; or lost in a salvage
                log.info("webhook %s has nothing to tell: %s", hook.id, error)
                await self._keep(replace(hook, state="failed", why=_one_line(str(error))))
                return None

    async def _deliver(self, client: httpx2.AsyncClient, hook: Hook, body: bytes) -> None:
        while hook.state == "pending":
            await anyio.sleep(min(_DAY, max(0.0, hook.due / 1000 - time.time())))  # a clock may have been set back
            async with self._room:
                failpoint("J12")
                attempt = await self._send(client, hook, body)
                failpoint("J13")
            hook = self._after(hook, attempt)
            await self._keep(hook)

    async def _send(self, client: httpx2.AsyncClient, hook: Hook, body: bytes) -> Attempt:
        headers = sign(self._target.secret, hook.id, int(time.time()), body)
        try:
            with anyio.fail_after(self._terms.patience):
                # Its status is all that counts: the answer's body is never read.
                async with client.stream("POST", self._target.url, content=body, headers=dict(headers)) as answer:
                    if answer.is_success:
                        return Attempt()
                    wait = retry_after(answer.headers, time.time()) or 0.0
                    return Attempt(f"answered {answer.status_code}", answer.status_code == _GONE, min(wait, _DAY))
        except (TimeoutError, httpx2.TimeoutException):
            return Attempt(f"did not answer in {self._terms.patience:g} s")
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, ValueError) as error:
            return Attempt(f"could not be told: {type(error).__name__}")

    def _after(self, hook: Hook, attempt: Attempt) -> Hook:
        if not attempt.why:
            log.info("webhook %s was taken by %s", hook.id, self._target.host)
            return replace(hook, state="sent", why="")
        why, tries = f"{self._target.host} {attempt.why}", hook.tries + 1
        wait = None if attempt.is_final else delay(self._terms.policy, tries, None, random.random())
        if wait is None:
            log.error("webhook %s is given up after attempt %s: %s", hook.id, tries, why)
            return replace(hook, state="failed", tries=tries, why=why)
        wait = max(wait, attempt.retry_after)
        log.warning("webhook %s was not taken: %s; attempt %s in %.3g s", hook.id, why, tries + 1, wait)
        return replace(hook, tries=tries, due=int((time.time() + wait) * 1000), why=why)

    async def _keep(self, hook: Hook) -> None:
        """Write down what became of it. Until that can be done, nothing more is sent of it."""
        while True:
            try:
                with anyio.CancelScope(shield=True):  # so that leaving in order repeats nothing
                    return await self._store.note_hook(hook)
            except Unavailable as error:
                log.warning("webhook %s: what became of it is not written down yet: %s", hook.id, error)
                await anyio.sleep(_STORE)
            except Refused as error:
                log.error("webhook %s: what became of it cannot be written down: %s", hook.id, error)
                return None


def hook_store(agent: Agent) -> HookStore:
    """Where an open home keeps its webhooks."""
    store = agent.home.store
    if not isinstance(store, SqliteStore):
        raise Refused("this store keeps no webhooks")
    return store


async def find_webhooks(agent: Agent) -> Webhooks | None:
    """As the home's settings say; None when nobody is to be told. Raises Refused when they cannot be used."""
    url = agent.config.webhook.url
    if not url:
        if waiting := (await hook_store(agent).count_hooks()).pending:
            log.warning("webhooks that wait until webhook.url is set again: %s", waiting)
        return None
    if not _can_be_called(url):
        raise Refused("webhook.url is no address that can be called")
    secret, place = find_secret(agent.config)
    target = Target(url, secret)
    log.info("webhooks go to %s, signed with the secret in %s", target.host, place)
    return Webhooks(agent, target)


def _can_be_called(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(httpx2.URL(url).host and parts.hostname and parts.port != 0)  # a port too high is a ValueError
    except (httpx2.InvalidURL, ValueError):
        return False


async def _end_of(agent: Agent, hook: Hook) -> bytes:
    """Waits for the end of what was asked for, and renders it."""
    session = await agent.find(hook.session)
    journal = await agent.journal(session, 0, hook.seq)
    if len(journal) < hook.seq:
        raise Refused("what it was to tell of was lost")
    frame = Frame(session.id, journal[-1], fold(journal), bounds_of(agent))
    progress = frame.progress()
    del journal  # the wait may be long
    async with aclosing(agent.follow(session, hook.seq)) as events:
        async for one in events:
            if isinstance(one, Entry):
                progress.take(one)
                if progress.is_over:
                    return render_event(hook, frame.so_far(progress)["status"], one.at)
    raise AssertionError("a follower never ends by itself")


def _client(target: Target) -> httpx2.AsyncClient:
    """Redirects are not followed: whoever answers must not choose whom else this machine calls."""
    is_near = is_loopback(urlsplit(target.url).hostname or "")
    verify = httpx2.create_ssl_context() if target.url.startswith("https:") else False
    return httpx2.AsyncClient(verify=verify, timeout=None, trust_env=not is_near, follow_redirects=False)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]
