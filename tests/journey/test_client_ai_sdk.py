"""Vercel's AI SDK from npm with a real `outrider up`."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest

from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import Script, ScriptRule
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import Person
from tests.support.npm import CLIENTS, installed
from tests.support.up import following, up

SCRIPT = Script(
    rules=(
        ScriptRule("how are things", ((says("all is well"),),)),
        ScriptRule("tell me more", ((says("and so it goes on and on"),),)),
        ScriptRule("ring it", ((says("", call("ring", times=2)),), (says("it rang"),))),
        ScriptRule("remember me", ((says("noted"),),)),
        ScriptRule("who am I", ((says("you are the sdk"),),)),
        ScriptRule("never end", ((says("one two three four five six", delay=0.1),),)),
    )
)
WRONG = "this key is wrong or revoked; `outrider key create` creates a new one"
STORIES: list[dict[str, Any]] = [
    {"story": "text", "text": "all is well", "finishReason": "stop", "counts": True},
    {
        "story": "stream",
        "text": "and so it goes on and on",
        "isPieces": True,
        "finishReason": "stop",
        "counts": True,
    },
    {"story": "tools", "text": "it rang", "steps": 2, "results": [["ring", {"times": 2}, "rang 2 times"]]},
    {"story": "toolsInStream", "text": "it rang", "calls": 1},
    {"story": "abort", "heard": True},
    {"story": "refused", "name": "AI_APICallError", "status": 401, "isRetryable": False, "message": WRONG},
]


@pytest.fixture(scope="module")
def client() -> Path:
    """The folder in which the client is installed, in the versions of the lock file."""
    folder = installed("ai-sdk")
    return Path(shutil.copy(CLIENTS / "ai-sdk" / "client.mjs", folder)).parent


def tells(client: Path, url: str, key: str, api: str, *stories: str) -> list[dict[str, Any]]:
    ran = subprocess.run(
        ["node", "client.mjs", api, *stories],
        cwd=client,
        env={"PATH": os.environ["PATH"], "OUTRIDER_URL": url, "OUTRIDER_KEY": key},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    return [json.loads(line) for line in ran.stdout.splitlines()]


def said_in(client: httpx2.Client, title: str) -> list[str]:
    """The messages of the session with this title, once it is idle."""
    ids = [one["id"] for one in client.get("/v1/sessions").json()["sessions"] if one["title"] == title]
    assert len(ids) == 1
    with following(client, ids[0], until="idle") as events:
        return [event["text"] for event in events if event["type"] in ("input", "reply")]


@pytest.mark.parametrize(
    ("api", "going_on"),
    [
        ("chat", {"story": "session", "texts": ["noted", "you are the sdk"], "told": "of the sdk"}),
        ("responses", {"story": "previous", "texts": ["noted", "you are the sdk"]}),
    ],
)
def test_text_streams_tools_sessions_and_an_abort(
    tmp_path: Path, client: Path, api: str, going_on: dict[str, Any]
) -> None:
    person = Person(tmp_path)
    with ScriptedServer(SCRIPT) as model:
        person.uses(model.url)
        with up(person) as running, running.client() as owner:
            expected = [*STORIES, going_on]
            names = [story["story"] for story in expected]
            assert tells(client, running.url, running.key, api, *names) == expected
            assert said_in(owner, "remember me") == ["remember me", "noted", "who am I?", "you are the sdk"]
            # Who leaves stops nothing.
            assert said_in(owner, "never end") == ["never end", "one two three four five six"]
            assert len(owner.get("/v1/sessions").json()["sessions"]) == 6  # nothing was asked for twice
