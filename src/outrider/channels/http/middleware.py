"""What every request passes before it reaches a route: where it was sent, who sent it, how often, how much it holds.

A guard is made with the application behind it. `guards()` gives them in the order in which `app.build` wants them.
"""

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
from outrider.channels.http.errors import HttpError, error_response
from outrider.channels.http.inputs import Caller
from outrider.channels.http.rate_limits import (
    ConcurrencyLimiter,
    MonotonicClock,
    RateLimiter,
    RequestLimits,
    too_many_requests,
)
from outrider.config.secrets import Secret
from outrider.core.errors import Refused, Unavailable
from outrider.core.store_port import Key, KeySpec, KeyStore
from outrider.store.keys import KEY_PATTERN, digest_of, secret_matches, split_key

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
PUBLIC_PATHS = frozenset({"/health"})
"""Answered without a key too; the route sees that there is no caller, and tells no more than that it is there."""
ENVIRONMENT_KEY_ID = "environment"
"""In place of an id, for the key in OUTRIDER_API_KEY."""
_log = logging.getLogger("outrider.http")
_KEY_PARAMETERS = frozenset({"key", "api_key", "apikey", "api-key", "access_token", "token"})
_MIN_UNGUESSABLE_CHARS = 32
"""Characters from which on a key that a person chose counts as one that nobody guesses."""
_MINUTE_MS = 60_000
_CLOSE_HEADER = {"connection": "close"}
_MAX_LENGTH_DIGITS = 18
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(?::(\d{1,5}))?", re.ASCII)
_ANONYMOUS_KEY = KeySpec("", "", ())
MiddlewareFactory = Callable[[ASGIApp], ASGIApp]


class AccessPolicy(Struct, frozen=True):
    """What the guards go by."""

    keys: KeyStore
    names: tuple[str, ...] = ()
    """Hosts, besides our own addresses, that requests may be sent to. No ports; an IPv6 address stands in brackets."""
    environment: Secret = Secret("")
    """One more key that may do everything: OUTRIDER_API_KEY."""
    limits: RequestLimits = RequestLimits()
    now: MonotonicClock = time.monotonic
    wall_clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    """Milliseconds since 1970."""


def middleware_for(agent: Agent) -> Sequence[MiddlewareFactory]:
    """The guards of an open home, by its settings and its keys."""
    config = agent.config
    return build_middleware(
        AccessPolicy(key_store(agent), config.http.names, config.keys.get("OUTRIDER_API_KEY", Secret(""))),
    )


def key_store(agent: Agent) -> KeyStore:
    """Where an open home keeps its keys."""
    return agent.home.store


def build_middleware(policy: AccessPolicy) -> Sequence[MiddlewareFactory]:
    """All of them, the first to be passed first."""
    crowd, rates, failures = ConcurrencyLimiter(), RateLimiter(now=policy.now), RateLimiter(now=policy.now)
    return (
        lambda app: HostMiddleware(app, policy.names, policy.limits.headers),
        lambda app: AuthMiddleware(app, policy, failures),
        lambda app: RateLimitMiddleware(app, policy.limits, rates, crowd),
        lambda app: BodyLimitMiddleware(app, policy.limits.body, policy.limits.bodies),
    )


class HostMiddleware:
    """Lets in what was sent to this server on purpose: not what a page elsewhere, or a name made up for us, sent."""

    def __init__(self, app: ASGIApp, names: Iterable[str], most: int) -> None:
        self._app, self._max_headers = app, most
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
            return HttpError(431, f"a request has at most {self._max_headers} headers", "too_many_headers")
        hosts = Headers(scope=scope).getlist("host")
        found = _host(hosts[0]) if len(hosts) == 1 else None
        if found is None:
            return HttpError(400, "a request names the one host it is for", "bad_host")
        if found[0] not in self._names and found[0] != _own_address(scope):
            return HttpError(403, "this is no name of this server; `http.names` in its settings lists them", "bad_host")
        if scope["method"] == "OPTIONS":
            allow = {"allow": "GET, HEAD, POST, PATCH, DELETE"}
            return HttpError(405, "OPTIONS is for pages of other sites, and those are not let in", "method", allow)
        if any(not _is_same(origin, found) for origin in Headers(scope=scope).getlist("origin")):
            return HttpError(403, "pages of other sites are not let in", "bad_origin")
        return None


def _host(text: str) -> tuple[str, str] | None:
    """A host in lower case and its port, which may be missing; None when it is no host."""
    found = _HOST.fullmatch(text.strip().lower())
    return (found[1], found[2] or "") if found else None


def _own_address(scope: Scope) -> str:
    """The address of ours that this connection came to: nobody else's name, so nothing can be made to lead here."""
    host = str((scope.get("server") or ("",))[0])
    return f"[{host}]" if ":" in host else host


def _is_same(origin: str, host: tuple[str, str]) -> bool:
    """Whether this origin is the host the request was sent to, its port included."""
    try:
        parsed = urlsplit(origin)
    except ValueError:
        return False
    usual = {"http": "80", "https": "443"}.get(parsed.scheme)
    found = _host(parsed.netloc)
    if usual is None or found is None or parsed.path or parsed.query or parsed.fragment:
        return False
    return (found[0], found[1] or usual) == (host[0], host[1] or usual)


class AuthMiddleware:
    """Lets in whoever has a key, and says in `scope["state"]["caller"]` whose it is.

    What goes on for long asks `scope["state"]["holds"]` now and then whether that key still holds.
    """

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
            message = "a key does not belong into a URL, where others may see it: send `Authorization: Bearer …`"
            raise HttpError(400, f"{message}, and make a new one", "key_in_url")
        given = Headers(scope=scope).getlist("authorization")
        if not given and scope["path"] in PUBLIC_PATHS:
            return
        key = await self._find_key(given, f"from {peer_address(scope)}")
        state = scope.setdefault("state", {})
        state["caller"] = Caller(key.spec.person, key.id, frozenset(key.spec.scopes), key.spec.spend)
        state["key"] = key.spec
        if key.id != ENVIRONMENT_KEY_ID:
            state["holds"] = lambda: self._is_valid(key.id)

    async def _is_valid(self, id: str) -> bool:
        """Whether a key that was let in has not been taken back since."""
        try:
            found = await self._policy.keys.find_key(id)
        except (Refused, Unavailable):  # nobody is sent away for what cannot be found out
            return True
        return found is not None and not found.revoked

    async def _find_key(self, headers: Sequence[str], whence: str) -> Key:
        if not headers:
            raise _unauthorized("no key: send it as `Authorization: Bearer …`; `outrider key` shows how", "no_key")
        scheme, _, text = headers[0].strip().partition(" ")
        rate = self._policy.limits.failures
        if len(headers) == 1 and scheme.lower() == "bearer":
            # Header values come as Latin-1, whatever they were written in.
            text = text.strip().encode("latin-1").decode("utf-8", "surrogateescape")
            ours = split_key(text)
            if found := (await self._find_stored_key(*ours) if ours else None) or self._from_environment(text, whence):
                return found
        if seconds := self._failures.take(whence, rate):
            raise too_many_requests("too many wrong keys from this address; wait", seconds, "too_many_failures")
        raise _unauthorized("this key is wrong or was revoked; `outrider key` shows how to get one", "invalid_api_key")

    async def _find_stored_key(self, id: str, secret: str) -> Key | None:
        """One of the store's, if it still holds. Always checked, however many wrong ones came: these nobody guesses."""
        try:
            found = await self._policy.keys.find_key(id)
        except (Refused, Unavailable) as error:
            _log.info("a key could not be looked up: %s", error)
            after = {"retry-after": "5"}
            raise HttpError(503, "keys cannot be looked up now; try again later", "unavailable", after) from error
        if not secret_matches(secret, found.digest if found else digest_of("")) or not found or found.revoked:
            return None
        if abs(self._policy.wall_clock() - found.used) >= _MINUTE_MS:
            await self._touch(id)
        return found

    def _from_environment(self, secret: str, whence: str) -> Key | None:
        """The one a person chose, which may be short: who has guessed wrong too often may not try it for a while."""
        seconds = self._failures.retry_after(whence, self._policy.limits.failures)
        if (
            self._environment_digest is None
            or (self._is_guessable and seconds)
            or not secret_matches(secret, self._environment_digest)
        ):
            return None
        return Key(ENVIRONMENT_KEY_ID, KeySpec(ENVIRONMENT_KEY_ID, "owner", ("admin",)), self._environment_digest, 0)

    async def _touch(self, id: str) -> None:
        try:
            await self._policy.keys.touch_key(id)
        except (Refused, Unavailable) as error:
            # When a key was used is good to know, and no reason to turn its owner away.
            _log.info("the use of key %s was not written down: %s", id, error)


def _unauthorized(message: str, code: str) -> HttpError:
    return HttpError(401, message, code, {"www-authenticate": "Bearer"})


def _has_key_in_url(scope: Scope) -> bool:
    query = scope["query_string"].decode("latin-1")
    if KEY_PATTERN.search(f"{scope['path']} {query} {unquote(query)}"):
        return True
    return any(name.lower() in _KEY_PARAMETERS for name, _ in parse_qsl(query, keep_blank_values=True))


def peer_address(scope: Scope) -> str:
    """The address a request came from."""
    client = scope.get("client")
    return client[0] if client else "nowhere"


class RateLimitMiddleware:
    """Lets each key in so often, and so many times at once; and each address that comes without one."""

    def __init__(self, app: ASGIApp, limits: RequestLimits, rates: RateLimiter, crowd: ConcurrencyLimiter) -> None:
        self._app, self._limits, self._rates, self._concurrency = app, limits, rates, crowd

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
        state, limits = scope.get("state", {}), self._limits
        name = state["caller"].key if "caller" in state else f"from {peer_address(scope)}"
        wish = state.get("key", _ANONYMOUS_KEY)
        rate = wish.rate or limits.rate
        with self._concurrency.slot(name, wish.concurrent or limits.concurrent):
            if seconds := self._rates.take(name, rate):
                raise too_many_requests(f"more than {rate} requests a minute; wait", seconds, "rate_limit_exceeded")
            yield


class BodyLimitMiddleware:
    """Lets a body in up to so many bytes, and so many of all that are held at once.

    One that says it is longer is refused before any of it is read.
    """

    def __init__(self, app: ASGIApp, most: int, together: int = RequestLimits().bodies) -> None:
        self._app, self._max_body_bytes, self._max_held_bytes = app, most, together
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
                busy = "too much is being sent by all together; come back in a moment"
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
            return HttpError(400, "content-length is one whole number", "bad_length", _CLOSE_HEADER)
        return (
            self._too_long() if len(lengths[0]) > _MAX_LENGTH_DIGITS or int(lengths[0]) > self._max_body_bytes else None
        )

    def _too_long(self) -> HttpError:
        return HttpError(413, f"a request has at most {self._max_body_bytes} bytes", "body_too_large", _CLOSE_HEADER)
