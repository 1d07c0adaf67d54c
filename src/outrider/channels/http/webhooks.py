"""Tells a receiver, set by the home's owner, that background responses have ended.

Each is written down before its request is acknowledged and marked once the receiver took it. Cut in between, it is sent
again under the same id, so that a receiver which remembers ids hears it once.

A webhook as it travels: the event, the headers that sign it by the Standard Webhooks rules, and their secret.
"""

import binascii
import hashlib
import hmac
import logging
import random
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import aclosing
from urllib.parse import urlsplit

import anyio
import httpx2
import msgspec
from anyio.abc import TaskStatus
from msgspec import Struct
from msgspec.structs import replace

from outrider.app.agent import Agent
from outrider.channels.http.openai.response_object import ResponseBuilder, response_id
from outrider.channels.http.openai.turn_output import bounds_of
from outrider.channels.http.server import is_loopback
from outrider.config.schema import Config
from outrider.config.secrets import Secret, resolve_secret
from outrider.core.errors import Refused, StoreDamaged, Unavailable
from outrider.core.events import Entry
from outrider.core.plan import fold
from outrider.core.retry import RetryPolicy, delay
from outrider.core.store_port import Session
from outrider.models.errors import retry_after
from outrider.store.keys import write_private
from outrider.store.sqlite import SqliteStore
from outrider.store.webhooks import WebhookDelivery, WebhookStore
from outrider.system.failpoints import failpoint

_SECRET_PREFIX = "whsec_"
_SHORTEST, _LONGEST = 24, 64
SECRET_FILE = "webhook_secret"
"""In the home: the secret that was made because none was set."""


def render_webhook_event(hook: WebhookDelivery, status: str, at: int) -> bytes:
    """The event that tells how a response ended, `at` in milliseconds. The same bytes for the same end."""
    told = {
        "id": f"evt_{hook.id.removeprefix('wh_')}",
        "object": "event",
        "created_at": at // 1000,
        "type": f"response.{status}",
        "data": {"id": response_id(hook.session, hook.seq)},
    }
    return msgspec.json.encode(told)


def signed_headers(secret: Secret, id: str, at: int, body: bytes) -> Mapping[str, str]:
    """The headers of one attempt, `at` in seconds. Raises Refused when the secret is none."""
    digest = hmac.new(parse_secret(secret), f"{id}.{at}.".encode() + body, hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{b64encode(digest).decode()}",
    }


def parse_secret(secret: Secret) -> bytes:
    """The key that is in it. Raises Refused when there is none, without saying what was given."""
    prefix, mark, text = secret.reveal().partition("_")
    try:
        key = b64decode(text, validate=True) if prefix + mark == _SECRET_PREFIX else b""
    except (binascii.Error, ValueError):
        key = b""
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise Refused(
            f"webhook.secret is not valid: it begins with {_SECRET_PREFIX}, and then come "
            f"{_SHORTEST} to {_LONGEST} bytes in base64"
        )
    return key


def find_secret(config: Config) -> tuple[Secret, str]:
    """The secret, made and left in the home if none is set, and where it is. Raises Refused when it cannot be used."""
    path = config.home / SECRET_FILE
    if place := config.references.get("webhook.secret"):
        secret = config.webhook.secret
        if not secret:
            raise Refused(f"webhook.secret is to come from {place}, and there is nothing there")
    else:
        if not path.exists():
            write_private(path, _SECRET_PREFIX + b64encode(secrets.token_bytes(32)).decode())
        secret, place = resolve_secret("webhook.secret", f"file:{path}", {}), str(path)
    parse_secret(secret)
    return secret, place


log = logging.getLogger("outrider.webhooks")
_GONE_STATUS = 410
_DAY_SECONDS = 86_400.0
_MAX_REASON_CHARS = 200
_STORE_RETRY_SECONDS = 10.0
"""Seconds after which a store that was unavailable is tried again."""


class WebhookTarget(Struct, frozen=True):
    """Who is told."""

    url: str
    secret: Secret

    @property
    def host(self) -> str:
        """All that may be said of the URL: its path may be a secret of the receiver's."""
        return urlsplit(self.url).netloc


class DeliveryPolicy(Struct, frozen=True):
    """How long and how often to try."""

    retry: RetryPolicy = RetryPolicy(attempts=13, first=5.0, factor=3.0, longest=21_600.0)
    """Its waits come to about a day."""
    timeout: float = 15.0
    """Seconds the receiver has to answer."""
    max_concurrent: int = 8
    """Attempts that may be under way."""


class DeliveryAttempt(Struct, frozen=True):
    """What came of sending it once."""

    error: str = ""
    """Why it was not taken; empty when it was."""
    is_final: bool = False
    """Whether the receiver wants no more of it."""
    retry_after: float = 0.0


class Webhooks:
    """Those of one home."""

    def __init__(self, agent: Agent, target: WebhookTarget, policy: DeliveryPolicy = DeliveryPolicy()) -> None:  # noqa: B008 (frozen)
        self._agent = agent
        self._store = webhook_store(agent)
        self._target = target
        self._policy = policy
        self._slots = anyio.CapacityLimiter(policy.max_concurrent)
        self._in_progress: set[str] = set()
        self._start_task: Callable[[WebhookDelivery], object] | None = None
        """None while not running: what is owed then is found in the store by the next run."""

    async def enqueue(self, session: Session, seq: int) -> None:
        """Tell the end of what was asked for at this entry. Durable when this returns; again, it is the same one."""
        self._start(await self._store.add_webhook(session.id, seq))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """See to all that is owed, now and from now on, until cancelled."""
        async with _client(self._target) as client, anyio.create_task_group() as group:
            self._start_task = lambda hook: group.start_soon(self._deliver_when_done, client, hook)
            try:
                for hook in await self._store.pending_webhooks():
                    self._start(hook)
                task_status.started()
                await anyio.sleep_forever()
            finally:
                self._start_task = None

    def _start(self, hook: WebhookDelivery) -> None:
        if self._start_task and hook.state == "pending" and hook.id not in self._in_progress:
            self._in_progress.add(hook.id)
            self._start_task(hook)

    async def _deliver_when_done(self, client: httpx2.AsyncClient, hook: WebhookDelivery) -> None:
        try:
            if body := await self._wait_for_event(hook):
                await self._deliver(client, hook, body)
        finally:
            self._in_progress.discard(hook.id)

    async def _wait_for_event(self, hook: WebhookDelivery) -> bytes | None:
        """The event to send, once it has happened; None when it never will, or cannot be known."""
        while True:
            try:
                return await _wait_for_end(self._agent.for_person(hook.person), hook)
            except Unavailable as error:
                log.debug("webhook %s: its session cannot be followed now: %s", hook.id, error)
                await anyio.sleep(_STORE_RETRY_SECONDS)
            except StoreDamaged as error:
                log.error("webhook %s waits for the next start: %s", hook.id, error)
                return None
            except Refused as error:  # deleted, and the webhook with it; or lost in a salvage
                log.info("webhook %s has nothing to tell: %s", hook.id, error)
                await self._save(replace(hook, state="failed", why=_one_line(str(error))))
                return None

    async def _deliver(self, client: httpx2.AsyncClient, hook: WebhookDelivery, body: bytes) -> None:
        while hook.state == "pending":
            await anyio.sleep(
                min(_DAY_SECONDS, max(0.0, hook.due / 1000 - time.time()))
            )  # a clock may have been set back
            async with self._slots:
                failpoint("webhook_not_sent")
                attempt = await self._send(client, hook, body)
                failpoint("webhook_sent")
            hook = self._after_attempt(hook, attempt)
            await self._save(hook)

    async def _send(self, client: httpx2.AsyncClient, hook: WebhookDelivery, body: bytes) -> DeliveryAttempt:
        headers = signed_headers(self._target.secret, hook.id, int(time.time()), body)
        try:
            with anyio.fail_after(self._policy.timeout):
                # Its status is all that counts: the answer's body is never read.
                async with client.stream("POST", self._target.url, content=body, headers=dict(headers)) as answer:
                    if answer.is_success:
                        return DeliveryAttempt()
                    wait = retry_after(answer.headers, time.time()) or 0.0
                    return DeliveryAttempt(
                        f"answered {answer.status_code}", answer.status_code == _GONE_STATUS, min(wait, _DAY_SECONDS)
                    )
        except (TimeoutError, httpx2.TimeoutException):
            return DeliveryAttempt(f"did not answer in {self._policy.timeout:g} s")
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, ValueError) as error:
            return DeliveryAttempt(f"could not be told: {type(error).__name__}")

    def _after_attempt(self, hook: WebhookDelivery, attempt: DeliveryAttempt) -> WebhookDelivery:
        if not attempt.error:
            log.info("webhook %s was taken by %s", hook.id, self._target.host)
            return replace(hook, state="sent", why="")
        why, tries = f"{self._target.host} {attempt.error}", hook.tries + 1
        wait = None if attempt.is_final else delay(self._policy.retry, tries, None, random.random())
        if wait is None:
            log.error("webhook %s is given up after attempt %s: %s", hook.id, tries, why)
            return replace(hook, state="failed", tries=tries, why=why)
        wait = max(wait, attempt.retry_after)
        log.warning("webhook %s was not taken: %s; attempt %s in %.3g s", hook.id, why, tries + 1, wait)
        return replace(hook, tries=tries, due=int((time.time() + wait) * 1000), why=why)

    async def _save(self, hook: WebhookDelivery) -> None:
        """Write down what became of it. Until that can be done, nothing more is sent of it."""
        while True:
            try:
                with anyio.CancelScope(shield=True):  # so that leaving in order repeats nothing
                    return await self._store.update_webhook(hook)
            except Unavailable as error:
                log.warning("webhook %s: what became of it is not written down yet: %s", hook.id, error)
                await anyio.sleep(_STORE_RETRY_SECONDS)
            except Refused as error:
                log.error("webhook %s: what became of it cannot be written down: %s", hook.id, error)
                return None


def webhook_store(agent: Agent) -> WebhookStore:
    """Where an open home keeps its webhooks."""
    store = agent.home.store
    if not isinstance(store, SqliteStore):
        raise Refused("this store keeps no webhooks")
    return store


async def configure_webhooks(agent: Agent) -> Webhooks | None:
    """As the home's settings say; None when nobody is to be told. Raises Refused when they cannot be used."""
    url = agent.config.webhook.url
    if not url:
        if waiting := (await webhook_store(agent).count_webhooks()).pending:
            log.warning("webhooks that wait until webhook.url is set again: %s", waiting)
        return None
    if not _is_valid_url(url):
        raise Refused("webhook.url is no address that can be called")
    secret, place = find_secret(agent.config)
    target = WebhookTarget(url, secret)
    log.info("webhooks go to %s, signed with the secret in %s", target.host, place)
    return Webhooks(agent, target)


def _is_valid_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(httpx2.URL(url).host and parts.hostname and parts.port != 0)  # a port too high is a ValueError
    except (httpx2.InvalidURL, ValueError):
        return False


async def _wait_for_end(agent: Agent, hook: WebhookDelivery) -> bytes:
    """Waits for the end of what was asked for, and renders it."""
    session = await agent.find(hook.session)
    journal = await agent.journal(session, 0, hook.seq)
    if len(journal) < hook.seq:
        raise Refused("what it was to tell of was lost")
    frame = ResponseBuilder(session.id, journal[-1], fold(journal), bounds_of(agent))
    progress = frame.turn_output()
    del journal  # the wait may be long
    async with aclosing(agent.follow(session, hook.seq)) as events:
        async for one in events:
            if isinstance(one, Entry):
                progress.add(one)
                if progress.is_over:
                    return render_webhook_event(hook, frame.render_current(progress)["status"], one.at)
    raise AssertionError("a follower never ends by itself")


def _client(target: WebhookTarget) -> httpx2.AsyncClient:
    """Redirects are not followed: whoever answers must not choose whom else this machine calls."""
    is_near = is_loopback(urlsplit(target.url).hostname or "")
    verify = httpx2.create_ssl_context() if target.url.startswith("https:") else False
    return httpx2.AsyncClient(verify=verify, timeout=None, trust_env=not is_near, follow_redirects=False)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_MAX_REASON_CHARS]
