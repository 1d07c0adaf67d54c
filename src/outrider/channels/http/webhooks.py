"""Webhooks: signed notifications that background responses have ended, sent to a configured receiver.

A webhook is recorded before its request is acknowledged, and marked as sent when the receiver has accepted it. After a
crash in between it is sent again with the same id, so a receiver that remembers ids processes it once. Signatures
follow the Standard Webhooks specification.
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
from urllib.parse import urlsplit

import anyio
import httpx2
import msgspec
from anyio.abc import TaskStatus
from msgspec import Struct
from msgspec.structs import replace

from outrider.app.agent import Agent
from outrider.channels.http.openai.response_object import ResponseBuilder, response_id
from outrider.channels.http.openai.turn_output import bounds_of, follow_to_end
from outrider.channels.http.server import is_loopback
from outrider.config.schema import Config
from outrider.config.secrets import Secret, resolve_secret
from outrider.core.errors import Refused, StoreDamaged, Unavailable
from outrider.core.plan import fold
from outrider.core.retry import RetryPolicy, delay
from outrider.core.store_port import Session
from outrider.core.text import clip
from outrider.models.errors import retry_after
from outrider.store.keys import write_secret
from outrider.store.sqlite import SqliteStore
from outrider.store.webhooks import WebhookDelivery, WebhookStore
from outrider.system.failpoints import failpoint

log = logging.getLogger("outrider.webhooks")
_GONE_STATUS = 410
_DAY_SECONDS = 86_400.0
_MAX_REASON_CHARS = 200
_STORE_RETRY_SECONDS = 10.0
"""Seconds before an unavailable store is tried again."""
_SECRET_PREFIX = "whsec_"
_MIN_SECRET_BYTES, _MAX_SECRET_BYTES = 24, 64
SECRET_FILE = "webhook_secret"
"""The file in the home with the secret that is generated when none is configured."""


def render_webhook_event(hook: WebhookDelivery, status: str, at: int) -> bytes:
    """The event for a response that ended with this status, `at` in milliseconds. Always the same bytes."""
    event = {
        "id": f"evt_{hook.id.removeprefix('wh_')}",
        "object": "event",
        "created_at": at // 1000,
        "type": f"response.{status}",
        "data": {"id": response_id(hook.session, hook.seq)},
    }
    return msgspec.json.encode(event)


def signed_headers(secret: Secret, id: str, at: int, body: bytes) -> Mapping[str, str]:
    """The headers of one attempt, `at` in seconds. Raises Refused for an invalid secret."""
    digest = hmac.new(parse_secret(secret), f"{id}.{at}.".encode() + body, hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{b64encode(digest).decode()}",
    }


def parse_secret(secret: Secret) -> bytes:
    """The signing key. Raises Refused, without repeating the secret, when it is invalid."""
    prefix, underscore, text = secret.reveal().partition("_")
    try:
        key = b64decode(text, validate=True) if prefix + underscore == _SECRET_PREFIX else b""
    except (binascii.Error, ValueError):
        key = b""
    if not _MIN_SECRET_BYTES <= len(key) <= _MAX_SECRET_BYTES:
        raise Refused(
            f"webhook.secret is not valid: it must be {_SECRET_PREFIX} followed by "
            f"{_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES} bytes in base64"
        )
    return key


def find_secret(config: Config) -> tuple[Secret, str]:
    """The secret and its source; generated in the home when none is configured. Raises Refused when it is invalid."""
    path = config.home / SECRET_FILE
    if source := config.references.get("webhook.secret"):
        secret = config.webhook.secret
        if not secret:
            raise Refused(f"webhook.secret refers to {source}, which is empty or missing")
    else:
        if not path.exists():
            write_secret(path, _SECRET_PREFIX + b64encode(secrets.token_bytes(32)).decode())
        secret, source = resolve_secret("webhook.secret", f"file:{path}", {}), str(path)
    parse_secret(secret)
    return secret, source


class WebhookTarget(Struct, frozen=True):
    url: str
    secret: Secret

    @property
    def host(self) -> str:
        """The part of the URL that may be logged: the path may contain a secret."""
        return urlsplit(self.url).netloc


class DeliveryPolicy(Struct, frozen=True):
    """How long and how often to try."""

    retry: RetryPolicy = RetryPolicy(attempts=13, first=5.0, factor=3.0, longest=21_600.0)
    """The delays add up to about a day."""
    timeout: float = 15.0
    """Seconds to wait for the receiver's response."""
    max_concurrent: int = 8
    """Attempts at once."""


class DeliveryAttempt(Struct, frozen=True):
    error: str = ""
    """Why the receiver did not accept it; empty when it did."""
    is_final: bool = False
    """Whether to stop trying."""
    retry_after: float = 0.0


class Webhooks:
    """Delivers the webhooks of one home."""

    def __init__(self, agent: Agent, target: WebhookTarget, policy: DeliveryPolicy = DeliveryPolicy()) -> None:  # noqa: B008 (frozen)
        self._agent = agent
        self._store = webhook_store(agent)
        self._target = target
        self._policy = policy
        self._slots = anyio.CapacityLimiter(policy.max_concurrent)
        self._in_progress: set[str] = set()
        self._start_task: Callable[[WebhookDelivery], object] | None = None
        """None while not running; the next run then finds what is pending in the store."""

    async def enqueue(self, session: Session, seq: int) -> None:
        """Send a webhook when the response at this entry has ended. Durable when this returns; idempotent."""
        self._start(await self._store.add_webhook(session.id, seq))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Deliver what is pending and what is added, until cancelled."""
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
        """The event to send, once the response has ended; None when it cannot be determined."""
        while True:
            try:
                return await _wait_for_end(self._agent.for_person(hook.person), hook)
            except Unavailable as error:
                log.debug("webhook %s: cannot follow its session now: %s", hook.id, error)
                await anyio.sleep(_STORE_RETRY_SECONDS)
            except StoreDamaged as error:
                log.error("webhook %s is postponed until the next start: %s", hook.id, error)
                return None
            except Refused as error:  # deleted together with the webhook, or lost in a recovery
                log.info("webhook %s is dropped: %s", hook.id, error)
                await self._save(replace(hook, state="failed", why=clip(str(error), _MAX_REASON_CHARS)))
                return None

    async def _deliver(self, client: httpx2.AsyncClient, hook: WebhookDelivery, body: bytes) -> None:
        while hook.state == "pending":
            # At most a day, because the clock may have been set back.
            await anyio.sleep(min(_DAY_SECONDS, max(0.0, hook.due / 1000 - time.time())))
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
                # Only the status matters: the response's body is never read.
                async with client.stream("POST", self._target.url, content=body, headers=dict(headers)) as response:
                    if response.is_success:
                        return DeliveryAttempt()
                    wait = retry_after(response.headers, time.time()) or 0.0
                    return DeliveryAttempt(
                        f"responded with {response.status_code}",
                        response.status_code == _GONE_STATUS,
                        min(wait, _DAY_SECONDS),
                    )
        except (TimeoutError, httpx2.TimeoutException):
            return DeliveryAttempt(f"did not respond within {self._policy.timeout:g} s")
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, ValueError) as error:
            return DeliveryAttempt(f"could not be reached: {type(error).__name__}")

    def _after_attempt(self, hook: WebhookDelivery, attempt: DeliveryAttempt) -> WebhookDelivery:
        if not attempt.error:
            log.info("webhook %s was accepted by %s", hook.id, self._target.host)
            return replace(hook, state="sent", why="")
        why, tries = f"{self._target.host} {attempt.error}", hook.tries + 1
        wait = None if attempt.is_final else delay(self._policy.retry, tries, None, random.random())
        if wait is None:
            log.error("giving up webhook %s after attempt %s: %s", hook.id, tries, why)
            return replace(hook, state="failed", tries=tries, why=why)
        wait = max(wait, attempt.retry_after)
        log.warning("webhook %s was not accepted: %s; attempt %s in %.3g s", hook.id, why, tries + 1, wait)
        return replace(hook, tries=tries, due=int((time.time() + wait) * 1000), why=why)

    async def _save(self, hook: WebhookDelivery) -> None:
        """Record the outcome. Until that succeeds, nothing more is sent for this webhook."""
        while True:
            try:
                with anyio.CancelScope(shield=True):  # so that an orderly shutdown repeats nothing
                    return await self._store.update_webhook(hook)
            except Unavailable as error:
                log.warning("webhook %s: its outcome is not recorded yet: %s", hook.id, error)
                await anyio.sleep(_STORE_RETRY_SECONDS)
            except Refused as error:
                log.error("webhook %s: cannot record its outcome: %s", hook.id, error)
                return None


def webhook_store(agent: Agent) -> WebhookStore:
    store = agent.home.store
    if not isinstance(store, SqliteStore):
        raise Refused("this store has no webhooks")
    return store


async def configure_webhooks(agent: Agent) -> Webhooks | None:
    """Webhooks according to the home's settings; None without a receiver. Raises Refused for invalid settings."""
    url = agent.config.webhook.url
    if not url:
        if waiting := (await webhook_store(agent).count_webhooks()).pending:
            log.warning("%s webhooks wait until webhook.url is set again", waiting)
        return None
    if not _is_valid_url(url):
        raise Refused("webhook.url is not a valid URL")
    secret, source = find_secret(agent.config)
    target = WebhookTarget(url, secret)
    log.info("webhooks are sent to %s, signed with the secret in %s", target.host, source)
    return Webhooks(agent, target)


def _is_valid_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(
            httpx2.URL(url).host and parts.hostname and parts.port != 0
        )  # a port that is too high is a ValueError
    except (httpx2.InvalidURL, ValueError):
        return False


async def _wait_for_end(agent: Agent, hook: WebhookDelivery) -> bytes:
    """Wait for the end of the response, and render its event."""
    session = await agent.find(hook.session)
    journal = await agent.journal(session, 0, hook.seq)
    if len(journal) < hook.seq:
        raise Refused("its response was lost")
    builder = ResponseBuilder(session.id, journal[-1], fold(journal), bounds_of(agent))
    output = builder.turn_output()
    del journal  # the wait may be long
    last = await follow_to_end(agent, session, output)
    return render_webhook_event(hook, builder.render_current(output)["status"], last.at)


def _client(target: WebhookTarget) -> httpx2.AsyncClient:
    """Redirects are not followed: a receiver must not choose which other addresses this machine calls."""
    is_local = is_loopback(urlsplit(target.url).hostname or "")
    verify = httpx2.create_ssl_context() if target.url.startswith("https:") else False
    return httpx2.AsyncClient(verify=verify, timeout=None, trust_env=not is_local, follow_redirects=False)
