"""OpenAI's Python client with a real `outrider up`: its helpers, retries and timeouts."""

import signal
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

from bench.ports import free_port
from outrider.testing.scripted_model import says
from outrider.testing.scripted_server.script import Script, Stall, script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import PATIENCE, Person
from tests.support.up import Running, up

ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "how are things?"}]
ONCE = {"Idempotency-Key": "only once"}


@contextmanager
def client_of(running: Running) -> Generator[OpenAI]:
    with OpenAI(base_url=f"{running.url}/v1", api_key=running.key, timeout=PATIENCE) as client:
        yield client


@contextmanager
def asking(folder: Path, lines: Script) -> Generator[tuple[OpenAI, Running]]:
    person = Person(folder)
    with ScriptedServer(lines) as model:
        person.uses(model.url)
        with up(person) as running, client_of(running) as client:
            yield client, running


class Weather(BaseModel):
    city: str


def test_the_stream_helper_for_chunks_assembles_the_completion(tmp_path: Path) -> None:
    with asking(tmp_path, script(says("all is well"))) as (client, _):
        with client.chat.completions.stream(model="outrider", messages=ASKED) as stream:
            pieces = [event.delta for event in stream if event.type == "content.delta"]
            whole = stream.get_final_completion()
        assert ("".join(pieces), len(pieces) > 1) == ("all is well", True)
        choice = whole.choices[0]
        assert (choice.message.content, choice.finish_reason) == ("all is well", "stop")


def test_the_stream_helper_for_responses_assembles_the_response(tmp_path: Path) -> None:
    with asking(tmp_path, script(says("all is well"))) as (client, _):
        with client.responses.stream(model="outrider", input="how are things?") as stream:
            pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
            whole = stream.get_final_response()
        assert ("".join(pieces), len(pieces) > 1) == ("all is well", True)
        assert (whole.status, whole.output_text) == ("completed", "all is well")
        assert client.responses.retrieve(whole.id).output_text == "all is well"


def test_structured_output_is_refused_with_a_reason(tmp_path: Path) -> None:
    with asking(tmp_path, script(says("{}"))) as (client, running):
        with pytest.raises(openai.BadRequestError, match="response_format"):
            client.chat.completions.parse(model="outrider", messages=ASKED, response_format=Weather)
        with pytest.raises(openai.BadRequestError, match="text"):
            client.responses.parse(model="outrider", input="how are things?", text_format=Weather)
        with running.client() as owner:
            assert owner.get("/v1/sessions").json() == {"sessions": []}


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_client_that_retries_with_a_key_survives_a_restart(tmp_path: Path, api: str, number: int) -> None:
    person, port = Person(tmp_path), str(free_port())
    with ScriptedServer(script([Stall("stream"), says("all is well")])) as model, ThreadPoolExecutor(1) as threads:
        person.uses(model.url)
        with up(person, "--port", port) as running, client_of(running) as client:
            patient = client.with_options(max_retries=12)
            answer = threads.submit(_ask, patient, api)
            model.wait(1)
            running.ends(number)
            with up(person, "--port", port) as again, again.client() as owner:
                assert answer.result(PATIENCE) == "all is well"
                session = owner.get("/v1/sessions").json()["sessions"]
                assert len(session) == 1
                entries = owner.get(f"/v1/sessions/{session[0]['id']}/entries").json()["entries"]
    assert [entry["type"] for entry in entries if entry["type"] in ("input", "reply")] == ["input", "reply"]


def _ask(client: OpenAI, api: str) -> str | None:
    if api == "chat":
        made = client.chat.completions.create(model="outrider", messages=ASKED, extra_headers=ONCE)
        return made.choices[0].message.content
    return client.responses.create(model="outrider", input="how are things?", extra_headers=ONCE).output_text


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_client_that_times_out_and_retries_with_its_key_gets_the_same_turn(tmp_path: Path, api: str) -> None:
    with asking(tmp_path, script(says("one two three four", delay=0.5))) as (client, running):
        hasty = client.with_options(timeout=0.5, max_retries=0)
        with pytest.raises(openai.APITimeoutError):
            _ask(hasty, api)
        assert _ask(client, api) == "one two three four"
        with running.client() as owner:
            assert len(owner.get("/v1/sessions").json()["sessions"]) == 1
