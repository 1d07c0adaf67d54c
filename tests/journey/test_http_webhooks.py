"""Webhooks on the end of background responses, as a receiver with the official OpenAI client sees them."""

import logging
import stat
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import openai
import pytest
from openai import AsyncOpenAI

from bench.ports import free_port
from outrider.app.agent import Agent
from outrider.channels.http import health as routes_health
from outrider.channels.http.app import build_app
from outrider.channels.http.inputs import HttpContext
from outrider.channels.http.openai import responses as routes_responses
from outrider.channels.http.webhooks import DeliveryPolicy, Webhooks, WebhookTarget, webhook_store
from outrider.config.secrets import Secret
from outrider.core.errors import Refused
from outrider.core.retry import RetryPolicy
from outrider.store.webhooks import WebhookCount, WebhookDelivery
from outrider.testing.scripted_model import ScriptedModel, call, fails, says, stalls
from tests.journey.support import Person
from tests.support.http import any_key, serving_app
from tests.support.http import client as client_for
from tests.support.receiver import SECRET, Answer, Heard, Receiver, receiving
from tests.support.talking import client_of
from tests.support.tasking import open_scripted
from tests.support.up import up

pytestmark = pytest.mark.anyio

RING: Any = {"type": "function", "name": "ring", "parameters": {"type": "object", "properties": {}}, "strict": False}
QUICK = DeliveryPolicy(RetryPolicy(attempts=10_000, first=0.01, factor=1.0))


class Place:
    """A home behind HTTP that tells a receiver, and a client of it."""

    def __init__(self, agent: Agent, client: AsyncOpenAI, url: str) -> None:
        self.agent, self.client, self.url = agent, client, url
        self.store = webhook_store(agent)

    async def ask(self, given: Any, **more: Any) -> Any:
        create: Any = self.client.responses.create
        with anyio.fail_after(60):
            return await create(model="outrider", input=given, **{"background": True, **more})

    async def until_owed(self, is_so: Callable[[Sequence[WebhookDelivery]], bool]) -> Sequence[WebhookDelivery]:
        """What is owed, once it is as it should be."""
        with anyio.fail_after(60):
            while not is_so(found := await self.store.pending_webhooks()):
                await anyio.sleep(0.01)
        return found


@asynccontextmanager
async def place(folder: Path, url: str, *lines: Any, terms: DeliveryPolicy = QUICK) -> AsyncGenerator[Place]:
    routes = (*routes_responses.ROUTES, *routes_health.ROUTES)
    async with open_scripted(folder, ScriptedModel(*lines)) as agent, anyio.create_task_group() as group:
        webhooks = Webhooks(agent, WebhookTarget(url, Secret(SECRET)), terms)
        await group.start(webhooks.run)
        app = build_app(HttpContext(agent, "test", webhooks=webhooks), routes, (any_key,))
        async with serving_app(app) as here, client_of(here, max_retries=0) as client:
            yield Place(agent, client, here)
        group.cancel_scope.cancel()


async def heard(receiver: Receiver, count: int) -> Sequence[Heard]:
    return await anyio.to_thread.run_sync(receiver.wait, count)


async def test_a_background_response_is_told_of_when_it_ends_and_can_then_be_had(tmp_path: Path) -> None:
    held = stalls("working")
    with receiving() as receiver:
        async with place(tmp_path, receiver.url, held, says("all tidy")) as there:
            made = await there.ask("tidy up")
            with anyio.fail_after(30):
                await held.reached.wait()
            assert receiver.heard == []
            held.release()
            (told,) = await heard(receiver, 1)
            event = told.event()
            found = await there.client.responses.retrieve(event.data.id)
            await there.until_owed(lambda owed: not owed)
    assert (event.type, event.object, event.data.id) == ("response.completed", "event", made.id)
    assert (event.id.startswith("evt_"), event.created_at >= made.created_at) == (True, True)
    assert (found.status, found.output_text) == ("completed", "all tidy")
    assert told.headers["content-type"] == "application/json"


async def test_every_way_to_end_has_an_event_of_its_own(tmp_path: Path) -> None:
    held = stalls("working")
    lines = fails(Refused("no such model")), says("once upon a", cut="length"), held, says("never")
    with receiving() as receiver:
        async with place(tmp_path, receiver.url, *lines) as there:
            failed = await there.ask("one", conversation="s")
            await heard(receiver, 1)
            cut = await there.ask("two", conversation="s")
            await heard(receiver, 2)
            stopped = await there.ask("three", conversation="s")
            with anyio.fail_after(30):
                await held.reached.wait()
            await there.client.responses.cancel(stopped.id)
            events = [one.event() for one in await heard(receiver, 3)]
    assert [(event.type, event.data.id) for event in events] == [
        ("response.failed", failed.id),
        ("response.incomplete", cut.id),
        ("response.cancelled", stopped.id),
    ]


async def test_a_response_that_ends_in_a_call_of_the_clients_is_told_of_and_so_is_the_one_that_goes_on(
    tmp_path: Path,
) -> None:
    with receiving() as receiver:
        lines = says("I ring", call("ring", times=1)), says("it rang")
        async with place(tmp_path, receiver.url, *lines) as there:
            first = await there.ask("ring", tools=[RING])
            await heard(receiver, 1)
            (asked,) = [
                item for item in (await there.client.responses.retrieve(first.id)).output if "call" in item.type
            ]
            result = {"type": "function_call_output", "call_id": getattr(asked, "call_id", ""), "output": "ding"}
            second = await there.ask([result], previous_response_id=first.id)
            told = await heard(receiver, 2)
            done = await there.client.responses.retrieve(second.id)
    assert [(one.event().type, one.response) for one in told] == [
        ("response.completed", first.id),
        ("response.completed", second.id),
    ]
    assert done.output_text == "it rang"


async def test_only_background_responses_are_told_of(tmp_path: Path) -> None:
    with receiving() as receiver:
        async with place(tmp_path, receiver.url, says("one"), says("two")) as there:
            await there.ask("now", conversation="s", background=False)
            later = await there.ask("later", conversation="s")
            (told,) = await heard(receiver, 1)
    assert told.event().data.id == later.id


async def test_the_same_request_again_is_told_of_once(tmp_path: Path) -> None:
    key = {"Idempotency-Key": "invoice-7"}
    with receiving() as receiver:
        async with place(tmp_path, receiver.url, says("paid"), says("never")) as there:
            made = await there.ask("pay", extra_headers=key)
            await heard(receiver, 1)
            again = await there.ask("pay", extra_headers=key)
            other = await there.ask("something else")
            told = await heard(receiver, 2)
    assert made.id == again.id
    assert [one.event().data.id for one in told] == [made.id, other.id]


async def test_a_receiver_that_fails_is_told_again_the_same_under_the_same_id(tmp_path: Path) -> None:
    with receiving(Answer(500), Answer(302, {"location": "/elsewhere"}), Answer(404)) as receiver:
        async with place(tmp_path, receiver.url, says("done")) as there:
            made = await there.ask("go")
            told = await heard(receiver, 4)
            await there.until_owed(lambda owed: not owed)
    assert {(one.id, one.body, one.path) for one in told} == {(told[0].id, told[0].body, "/hooks/t0k3n-in-the-path")}
    assert [one.event().data.id for one in told] == [made.id] * 4


async def test_a_receiver_that_was_down_is_told_when_it_is_up(tmp_path: Path) -> None:
    port = free_port()
    async with place(tmp_path, f"http://127.0.0.1:{port}/hooks", says("done")) as there:
        made = await there.ask("go")
        (waiting,) = await there.until_owed(lambda owed: any(hook.tries for hook in owed))
        with receiving(port=port) as receiver:
            (told,) = await heard(receiver, 1)
            await there.until_owed(lambda owed: not owed)
    assert (told.event().data.id, told.id) == (made.id, waiting.id)
    assert waiting.why.endswith("could not be told: ConnectError")


async def test_a_webhook_owed_when_the_process_ended_is_sent_by_the_next(tmp_path: Path) -> None:
    async with place(tmp_path, f"http://127.0.0.1:{free_port()}/", says("done")) as there:
        made = await there.ask("go")
        (owed,) = await there.until_owed(lambda owed: any(hook.tries for hook in owed))
    with receiving() as receiver:
        async with place(tmp_path, receiver.url):
            (told,) = await heard(receiver, 1)
    assert (told.event().data.id, told.id) == (made.id, owed.id)


async def test_a_receiver_that_says_gone_is_not_told_again_and_that_is_counted(tmp_path: Path) -> None:
    with receiving(Answer(410)) as receiver:
        async with place(tmp_path, receiver.url, says("one"), says("two")) as there, client_for(there.url) as watcher:
            await there.ask("first")
            await there.until_owed(lambda owed: bool(receiver.heard) and not owed)
            await there.ask("second")
            told = await heard(receiver, 2)
            await there.until_owed(lambda owed: not owed)
            health = (await watcher.get("/health")).json()
            metrics = (await watcher.get("/metrics")).text
    assert len({one.id for one in told}) == 2
    assert (health["webhooks_pending"], health["webhooks_failed"]) == (0, 1)
    assert "\noutrider_webhooks_pending 0\n" in metrics
    assert "\noutrider_webhooks_failed 1\n" in metrics


async def test_attempts_are_bounded_and_giving_up_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    terms = DeliveryPolicy(RetryPolicy(attempts=2, first=0.01))
    with receiving(Answer(500), Answer(503)) as receiver:
        async with place(tmp_path, receiver.url, says("done"), terms=terms) as there:
            await there.ask("go")
            told = await heard(receiver, 2)
            await there.until_owed(lambda owed: not owed)
            assert await there.store.count_webhooks() == WebhookCount(failed=1)
    assert (len(receiver.heard), len({one.id for one in told})) == (2, 1)
    assert "is given up after attempt 2: 127.0.0.1:" in caplog.text


async def test_a_receiver_that_asks_for_a_pause_gets_it(tmp_path: Path) -> None:
    with receiving(Answer(503, {"retry-after": "3600"})) as receiver:
        async with place(tmp_path, receiver.url, says("done")) as there:
            asked = time.time()
            await there.ask("go")
            (waiting,) = await there.until_owed(lambda owed: any(hook.tries for hook in owed))
    assert (waiting.tries, waiting.due >= (asked + 3600) * 1000, len(receiver.heard)) == (1, True, 1)


async def test_the_usual_attempts_come_to_about_a_day() -> None:
    policy = DeliveryPolicy().retry
    waits = [min(policy.longest, policy.first * policy.factor**n) for n in range(policy.attempts - 1)]
    assert 18 * 3600 < 0.75 * sum(waits) < 30 * 3600  # a wait is between half of this and all of it


async def test_a_slow_receiver_holds_up_nothing_else(tmp_path: Path) -> None:
    go_on = threading.Event()
    terms = DeliveryPolicy(QUICK.retry, max_concurrent=2)
    with receiving(*[Answer(until=go_on)] * 2) as receiver:
        async with place(tmp_path, receiver.url, says("done"), terms=terms) as there:
            made = [await there.ask(f"job {number}") for number in range(5)]
            await heard(receiver, 2)
            now = await there.ask("and now?", background=False)
            assert (now.status, len(receiver.heard)) == ("completed", 2)
            go_on.set()
            told = await heard(receiver, 5)
            await there.until_owed(lambda owed: not owed)
    assert sorted(one.event().data.id for one in told) == sorted(one.id for one in made)


async def test_a_receiver_that_does_not_answer_is_left_and_told_again(tmp_path: Path) -> None:
    go_on = threading.Event()
    with receiving(Answer(until=go_on)) as receiver:
        async with place(
            tmp_path, receiver.url, says("done"), terms=DeliveryPolicy(QUICK.retry, timeout=0.05)
        ) as there:
            await there.ask("go")
            told = await heard(receiver, 2)
            await there.until_owed(lambda owed: not owed)
        go_on.set()
    assert len({(one.id, one.body) for one in told}) == 1


async def test_nothing_is_owed_for_a_deleted_session(tmp_path: Path) -> None:
    held = stalls("working")
    with receiving() as receiver:
        async with place(tmp_path, receiver.url, held, says("never")) as there:
            made = await there.ask("go", conversation="s")
            with anyio.fail_after(30):
                await held.reached.wait()
            await there.agent.delete(await there.agent.find("s"))
            assert await there.store.count_webhooks() == WebhookCount()
            held.release()
            other = await there.ask("go", conversation="t")
            await anyio.to_thread.run_sync(receiver.wait_for, other.id)
            await there.until_owed(lambda owed: not owed)
    told = [(one.event().type, one.response) for one in receiver.heard]
    assert told in (
        [("response.completed", other.id)],
        [("response.cancelled", made.id), ("response.completed", other.id)],
    )


@pytest.mark.promise("S14")
async def test_what_was_tampered_with_replayed_late_or_signed_by_another_does_not_verify(tmp_path: Path) -> None:
    with receiving() as receiver:
        async with place(tmp_path, receiver.url, says("done")) as there:
            await there.ask("go")
            (told,) = await heard(receiver, 1)
    assert told.event().type == "response.completed"
    stamp = int(told.headers["webhook-timestamp"])
    for changed in (
        Heard(told.path, told.headers, told.body.replace(b"completed", b"failed")),
        Heard(told.path, {**told.headers, "webhook-id": "wh_other"}, told.body),
        Heard(told.path, {**told.headers, "webhook-timestamp": str(stamp + 1)}, told.body),
        Heard(told.path, {**told.headers, "webhook-timestamp": str(stamp - 301)}, told.body),
    ):
        with pytest.raises(openai.InvalidWebhookSignatureError):
            changed.event()
    with pytest.raises(openai.InvalidWebhookSignatureError):
        told.event("whsec_" + "A" * 43 + "=")


async def test_neither_the_secret_nor_the_path_of_the_url_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "outrider")
    with receiving(Answer(500)) as receiver:
        async with place(tmp_path, receiver.url, says("done")) as there:
            await there.ask("go")
            await heard(receiver, 2)
            await there.until_owed(lambda owed: not owed)
    ours = [record.getMessage() for record in caplog.records if record.name == "outrider.webhooks"]
    assert [SECRET[6:20] in line or "t0k3n" in line for line in ours] == [False, False]


def test_outrider_up_makes_a_secret_for_its_owner_alone_and_keeps_it(tmp_path: Path) -> None:
    person = Person(tmp_path)
    person.uses("", "practice")
    file = person.home / "webhook_secret"
    with receiving() as receiver:
        person.environ["OUTRIDER_WEBHOOK_URL"] = receiver.url
        order = {"model": "outrider", "input": "hello", "background": True}
        for _ in range(2):
            with up(person) as running, running.client() as client:
                made = client.post("/v1/responses", json=order)
                assert made.status_code == 200, made.text
                told = receiver.wait_for(made.json()["id"])
            assert {one.event(file.read_text().strip()).type for one in told} == {"response.completed"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    log = (person.home / "logs" / "outrider.log").read_text()
    assert (str(file) in log, file.read_text()[6:20] in log, "t0k3n" in log) == (True, False, False)


@pytest.mark.parametrize("url", ["http://[t0k3n/", "http://host:t0k3n/", "http://host:99999/t0k3n"])
def test_an_address_that_cannot_be_called_is_refused_at_the_start(tmp_path: Path, url: str) -> None:
    person = Person(tmp_path)
    person.uses("", "practice", OUTRIDER_WEBHOOK_URL=url)
    ran = person.types("up", "--port", "0")
    assert (ran.code, "webhook.url is no" in ran.err, "t0k3n" in ran.err) == (2, True, False)


@pytest.mark.parametrize("given", ["hunter2hunter2", "whsec_c2hvcnQ=", "whsec_!!!", "env:NOT_THERE"])
def test_a_secret_that_cannot_be_used_is_refused_at_the_start_without_being_shown(tmp_path: Path, given: str) -> None:
    person = Person(tmp_path)
    person.uses("", "practice", OUTRIDER_WEBHOOK_URL="http://127.0.0.1:9/", OUTRIDER_WEBHOOK_SECRET=given)
    ran = person.types("up", "--port", "0")
    assert (ran.code, "webhook.secret" in ran.err, given[6:] in ran.err and "env:" not in given) == (2, True, False)
    assert not (person.home / "webhook_secret").exists()
