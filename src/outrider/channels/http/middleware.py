"""ASGI middleware: host and origin checks, authentication, rate limits, and limits on request bodies."""

import logging
import re
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.app.agent import Agent
from outrider.channels.http.endpoints import ANONYMOUS, NO_KEY, Caller, now_ms
from outrider.channels.http.errors import HttpError, error_response
from outrider.channels.http.rate_limits import (
    ConcurrencyLimiter,
    MonotonicClock,
    RateLimiter,
    RequestLimits,
    too_many_requests,
)
from outrider.config.secrets import Secret
from outrider.core.errors import Refused, Unavailable
from outrider.core.store_port import OWNER, Key, KeySpec, KeyStore
from outrider.store.keys import KEY_PATTERN, digest_of, secret_matches, split_key

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
PUBLIC_PATHS = frozenset({"/health"})
"""Paths that need no key."""
ENVIRONMENT_KEY_ID = "environment"
"""The id of the key in OUTRIDER_API_KEY."""
_log = logging.getLogger("outrider.http")
_KEY_PARAMETERS = frozenset({"key", "api_key", "apikey", "api-key", "access_token", "token"})
_MIN_UNGUESSABLE_CHARS = 32
"""A key of this length that a person chose counts as impossible to guess."""
_MINUTE_MS = 60_000
_CLOSE_HEADER = {"connection": "close"}
_MAX_LENGTH_DIGITS = 18
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(?::(\d{1,5}))?", re.ASCII)
MiddlewareFactory = Callable[[ASGIApp], ASGIApp]


class AccessPolicy(Struct, frozen=True):
    """What the middleware allows."""

    keys: KeyStore
    names: tuple[str, ...] = ()
    """Host names for requests, besides our own addresses, without ports; IPv6 addresses in brackets."""
    environment: Secret = Secret("")
    """The key in OUTRIDER_API_KEY, which has every scope."""
    limits: RequestLimits = RequestLimits()
    now: MonotonicClock = time.monotonic
    wall_clock: Callable[[], int] = now_ms


def middleware_for(agent: Agent) -> Sequence[MiddlewareFactory]:
    """The middleware for an open home, from its settings and keys."""
    config = agent.config
    return build_middleware(
        AccessPolicy(key_store(agent), config.http.names, config.keys.get("OUTRIDER_API_KEY", Secret(""))),
    )


def key_store(agent: Agent) -> KeyStore:
    return agent.home.store


def build_middleware(policy: AccessPolicy) -> Sequence[MiddlewareFactory]:
    """All middleware, outermost first."""
    concurrency, rates, failures = ConcurrencyLimiter(), RateLimiter(now=policy.now), RateLimiter(now=policy.now)
    return (
        lambda app: HostMiddleware(app, policy.names, policy.limits.headers),
        lambda app: AuthMiddleware(app, policy, failures),
        lambda app: RateLimitMiddleware(app, policy.limits, rates, concurrency),
        lambda app: BodyLimitMiddleware(app, policy.limits.body, policy.limits.bodies),
    )


class HostMiddleware:
    """Refuses requests for other host names and from pages of other sites."""

    def __init__(self, app: ASGIApp, names: Iterable[str], max_headers: int) -> None:
        self._app, self._max_headers = app, max_headers
        self._names = frozenset(name.lower() for name in (*LOOPBACK_HOSTS, *names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                if error := self._rejection(scope):
                    await error_response(Request(scope), error)(scope, receive, send)
                    return
            case "lifespan":
                pass
            case _:
                await send({"type": "websocket.close", "code": 1008})
                return
        await self._app(scope, receive, send)

    def _rejection(self, scope: Scope) -> HttpError | None:
        if len(scope["headers"]) > self._max_headers:
            return HttpError(431, f"a request may have at most {self._max_headers} headers", "too_many_headers")
        hosts = Headers(scope=scope).getlist("host")
        host = _host(hosts[0]) if len(hosts) == 1 else None
        if host is None:
            return HttpError(400, "a request must name one host", "bad_host")
        if host[0] not in self._names and host[0] != _own_address(scope):
            return HttpError(403, "this is not a name of this server; add it to the setting http.names", "bad_host")
        if scope["method"] == "OPTIONS":
            allow = {"allow": "GET, HEAD, POST, PATCH, DELETE"}
            return HttpError(405, "OPTIONS is for pages of other sites, which are not allowed", "method", allow)
        if any(not _is_same(origin, host) for origin in Headers(scope=scope).getlist("origin")):
            return HttpError(403, "requests from pages of other sites are not allowed", "bad_origin")
        return None


def _host(text: str) -> tuple[str, str] | None:
    """A host in lower case and its port, which may be empty; None for an invalid host."""
    match = _HOST.fullmatch(text.strip().lower())
    return (match[1], match[2] or "") if match else None


def _own_address(scope: Scope) -> str:
    """The address that this connection was made to. It is not a name, so no DNS record can be pointed at it."""
    host = str((scope.get("server") or ("",))[0])
    return f"[{host}]" if ":" in host else host


def _is_same(origin: str, host: tuple[str, str]) -> bool:
    """Whether this origin is the host the request was sent to, its port included."""
    try:
        parsed = urlsplit(origin)
    except ValueError:
        return False
    default_port = {"http": "80", "https": "443"}.get(parsed.scheme)
    origin_host = _host(parsed.netloc)
    if default_port is None or origin_host is None or parsed.path or parsed.query or parsed.fragment:
        return False
    return (origin_host[0], origin_host[1] or default_port) == (host[0], host[1] or default_port)


class AuthMiddleware:
    """Refuses requests without a valid key, and sets `scope["state"]["caller"]` for the others."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy, failures: RateLimiter) -> None:
        self._app, self._policy, self._failures = app, policy, failures
        chosen = policy.environment.reveal()
        self._environment_digest = digest_of(chosen) if chosen else None
        self._is_guessable = len(chosen) < _MIN_UNGUESSABLE_CHARS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                await self._authenticate(scope)
            except HttpError as error:
                await error_response(Request(scope), error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _authenticate(self, scope: Scope) -> None:
        if _has_key_in_url(scope):
            message = "a URL must not contain a key, because others may see it: create a new key, and send it as"
            raise HttpError(400, f"{message} `Authorization: Bearer …`", "key_in_url")
        headers = Headers(scope=scope).getlist("authorization")
        if not headers and scope["path"] in PUBLIC_PATHS:
            return
        key = await self._find_key(headers, f"from {peer_address(scope)}")
        scope.setdefault("state", {})["caller"] = Caller(
            key.spec.person,
            key.id,
            frozenset(key.spec.scopes),
            key.spec.spend,
            key.spec.rate,
            key.spec.concurrent,
            None if key.id == ENVIRONMENT_KEY_ID else lambda: self._is_valid(key.id),
        )

    async def _is_valid(self, id: str) -> bool:
        """Whether a key that was accepted has not been revoked since."""
        try:
            key = await self._policy.keys.find_key(id)
        except (Refused, Unavailable):  # not known to be revoked
            return True
        return key is not None and not key.revoked

    async def _find_key(self, headers: Sequence[str], peer: str) -> Key:
        if not headers:
            raise _unauthorized(NO_KEY, "no_key")
        scheme, _, text = headers[0].strip().partition(" ")
        rate = self._policy.limits.failures
        if len(headers) == 1 and scheme.lower() == "bearer":
            # Header values are decoded as Latin-1, whatever their encoding is.
            text = text.strip().encode("latin-1").decode("utf-8", "surrogateescape")
            parts = split_key(text)
            if key := (await self._find_stored_key(*parts) if parts else None) or self._from_environment(text, peer):
                return key
        if seconds := self._failures.take(peer, rate):
            raise too_many_requests("too many wrong keys from this address; wait", seconds, "too_many_failures")
        raise _unauthorized("this key is wrong or revoked; `outrider key create` makes a new one", "invalid_api_key")

    async def _find_stored_key(self, id: str, secret: str) -> Key | None:
        """The key in the store, unless it is revoked. Always tried: generated keys cannot be guessed."""
        try:
            key = await self._policy.keys.find_key(id)
        except (Refused, Unavailable) as error:
            _log.info("cannot look up a key: %s", error)
            headers = {"retry-after": "5"}
            raise HttpError(503, "keys cannot be looked up now; try again later", "unavailable", headers) from error
        # Compared even when there is no such key, so that the time it takes does not tell.
        if not secret_matches(secret, key.digest if key else digest_of("")) or not key or key.revoked:
            return None
        if abs(self._policy.wall_clock() - key.used) >= _MINUTE_MS:
            await self._touch(id)
        return key

    def _from_environment(self, secret: str, peer: str) -> Key | None:
        """The key in the environment. A short one is not tried for addresses that sent too many wrong keys."""
        seconds = self._failures.retry_after(peer, self._policy.limits.failures)
        if (
            self._environment_digest is None
            or (self._is_guessable and seconds)
            or not secret_matches(secret, self._environment_digest)
        ):
            return None
        return Key(ENVIRONMENT_KEY_ID, KeySpec(ENVIRONMENT_KEY_ID, OWNER, ("admin",)), self._environment_digest, 0)

    async def _touch(self, id: str) -> None:
        try:
            await self._policy.keys.touch_key(id)
        except (Refused, Unavailable) as error:
            # The time of last use is no reason to refuse a valid key.
            _log.info("cannot record the use of key %s: %s", id, error)


def _unauthorized(message: str, code: str) -> HttpError:
    return HttpError(401, message, code, {"www-authenticate": "Bearer"})


def _has_key_in_url(scope: Scope) -> bool:
    query = scope["query_string"].decode("latin-1")
    if KEY_PATTERN.search(f"{scope['path']} {query} {unquote(query)}"):
        return True
    return any(name.lower() in _KEY_PARAMETERS for name, _ in parse_qsl(query, keep_blank_values=True))


def peer_address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else "nowhere"


class RateLimitMiddleware:
    """Limits the rate and the concurrency of requests for each key, or for each address without one."""

    def __init__(
        self, app: ASGIApp, limits: RequestLimits, rates: RateLimiter, concurrency: ConcurrencyLimiter
    ) -> None:
        self._app, self._limits, self._rates, self._concurrency = app, limits, rates, concurrency

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as stack:
            if scope["type"] == "http":
                try:
                    stack.enter_context(self._admit(scope))
                except HttpError as error:
                    await error_response(Request(scope), error)(scope, receive, send)
                    return
            await self._app(scope, receive, send)

    @contextmanager
    def _admit(self, scope: Scope) -> Generator[None]:
        caller: Caller = scope.get("state", {}).get("caller", ANONYMOUS)
        name = caller.key or f"from {peer_address(scope)}"
        rate = caller.rate or self._limits.rate
        with self._concurrency.slot(name, caller.concurrent or self._limits.concurrent):
            if seconds := self._rates.take(name, rate):
                raise too_many_requests(f"more than {rate} requests a minute; wait", seconds, "rate_limit_exceeded")
            yield


class BodyLimitMiddleware:
    """Limits the bytes of one request body, and of all bodies in memory.

    A body whose declared length is too large is refused before any of it is read.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_total: int = RequestLimits().bodies) -> None:
        self._app, self._max_body_bytes, self._max_held_bytes = app, max_bytes, max_total
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if error := self._rejection(Headers(scope=scope).getlist("content-length")):
            await error_response(Request(scope), error)(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            more = len(message.get("body", b""))
            size, self._held_bytes = size + more, self._held_bytes + more
            if size > self._max_body_bytes:
                raise self._too_long()
            if self._held_bytes > self._max_held_bytes:
                busy = "too many large requests at once; try again in a moment"
                raise HttpError(503, busy, "busy", {"retry-after": "1", **_CLOSE_HEADER})
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._held_bytes -= size

    def _rejection(self, lengths: Sequence[str]) -> HttpError | None:
        if not lengths:
            return None
        if len(lengths) > 1 or not (lengths[0].isascii() and lengths[0].isdigit()):
            return HttpError(400, "content-length must be one whole number", "bad_length", _CLOSE_HEADER)
        return (
            self._too_long() if len(lengths[0]) > _MAX_LENGTH_DIGITS or int(lengths[0]) > self._max_body_bytes else None
        )

    def _too_long(self) -> HttpError:
        return HttpError(
            413, f"a request body may have at most {self._max_body_bytes} bytes", "body_too_large", _CLOSE_HEADER
        )
