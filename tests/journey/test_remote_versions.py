"""Entries of another Outrider whose version differs from this one."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from outrider.config.secrets import Secret
from outrider.core.events import Ended, Reply
from outrider.runtimes.remote.client import RemoteClient, RemoteEndpoint
from outrider.runtimes.remote.errors import RemoteFailed
from outrider.runtimes.remote.outrider_api import FarEntry, FarOutrider
from tests.support.http import serving_app

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60), pytest.mark.behaviour("C10")]


@asynccontextmanager
async def far_with(*entries: dict[str, Any]) -> AsyncGenerator[FarOutrider]:
    """An Outrider of any version, whose sessions have these entries."""

    async def list_entries(request: Request) -> Response:
        return JSONResponse({"entries": entries, "head": len(entries), "later": True})

    app = Starlette(routes=[Route("/v1/sessions/{id}/entries", list_entries)])
    async with serving_app(app) as url:
        remote = RemoteClient(RemoteEndpoint(url, "127.0.0.1", Secret("")), 30.0, str)
        try:
            yield FarOutrider(remote)
        finally:
            await remote.close()


async def test_unknown_entries_and_fields_are_left_out_and_the_rest_is_read() -> None:
    reply = {"type": "reply", "seq": 2, "at": 1, "text": "Hi.", "saw": 1, "usage": "much", "model": "m", "mood": 3}
    ended = {"type": "ended", "seq": 3, "at": 1, "outcome": "done", "saw": 1, "partial": ["x"]}
    async with far_with({"type": "dreamt", "seq": 1, "at": 1}, reply, ended) as far:
        entries = await far.entries("s", 0)
    assert entries == [FarEntry(1, None), FarEntry(2, Reply("Hi.", 1, model="m")), FarEntry(3, Ended("done", 1))]


async def test_an_entry_without_what_it_needs_is_an_error_and_not_ignored() -> None:
    async with far_with({"type": "ended", "seq": 1, "at": 1, "outcome": "postponed", "saw": 1}) as far:
        with pytest.raises(RemoteFailed, match=r"an entry that cannot be read .*postponed"):
            await far.entries("s", 0)
