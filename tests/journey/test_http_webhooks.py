"""Webhooks on the end of background responses, as a receiver with the official OpenAI client sees them."""

import logging
import re
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
from outrider.channels.http import health
from outrider.channels.http.app import build_app
from outrider.channels.http.endpoints import HttpContext
from outrider.channels.http.openai import responses
from outrider.channels.http.webhooks import DeliveryPolicy, Webhooks, WebhookTarget, webhook_store
from outrider.config.secrets import Secret
from outrider.core.errors import Refused
from outrider.core.retry import RetryPolicy
from outrider.store.webhooks import WebhookCount, WebhookDelivery
from outrider.testing.scripted_model import ScriptedModel, call, fails, says, stalls
from tests.journey.support import Person
from tests.support.http import any_key, serving_app
from tests.support.http import client as client_for
from tests.support.openai_home import client_of
from tests.support.receiver import SECRET, Answer, ReceivedRequest, Receiver, receiving
from tests.support.tasking import open_scripted
from tests.support.up import up

pytestmark = pytest.mark.anyio

RING: Any = {"type": "function", "name": "ring", "parameters": {"type": "object", "properties": {}}, "strict": False}
QUICK = DeliveryPolicy(RetryPolicy(attempts=10_000, first=0.01, factor=1.0))


class WebhookHome:
    """A home served over HTTP with a webhook receiver, and a client of it."""

    def __init__(self, agent: Agent, client: AsyncOpenAI, url: str) -> None:
        self.agent, self.client, self.url = agent, client, url
        self.store = webhook_store(agent)

    async def ask(self, text: Any, **more: Any) -> Any:
        create: Any = self.client.responses.create
        with anyio.fail_after(60):
            return await create(model="outrider", input=text, **{"background": True, **more})

    async def until_owed(self, is_so: Callable[[Sequence[WebhookDelivery]], bool]) -> Sequence[WebhookDelivery]:
        """The pending webhooks, once the condition holds."""
        with anyio.fail_after(60):
            while not is_so(response := await self.store.pending_webhooks()):
                await anyio.sleep(0.01)
        return response


@asynccontextmanager
async def webhook_home(
    folder: Path, url: str, *lines: Any, policy: DeliveryPolicy = QUICK
) -> AsyncGenerator[WebhookHome]:
    endpoints = (*responses.ENDPOINTS, *health.ENDPOINTS)
    async with open_scripted(folder, ScriptedModel(*lines)) as agent, anyio.create_task_group() as group:
        webhooks = Webhooks(agent, WebhookTarget(url, Secret(SECRET)), policy)
        await group.start(webhooks.run)
        app = build_app(HttpContext(agent, "test", webhooks=webhooks), endpoints, (any_key,))
        async with serving_app(app) as base_url, client_of(base_url, max_retries=0) as client:
            yield WebhookHome(agent, client, base_url)
        group.cancel_scope.cancel()


async def received(receiver: Receiver, count: int) -> Sequence[ReceivedRequest]:
    return await anyio.to_thread.run_sync(receiver.wait, count)


async def test_the_end_of_a_background_response_is_sent_and_the_response_can_then_be_retrieved(tmp_path: Path) -> None:
    held = stalls("working")
    with receiving() as receiver:
        async with webhook_home(tmp_path, receiver.url, held, says("all tidy")) as home:
            made = await home.ask("tidy up")
            with anyio.fail_after(60):
                await held.reached.wait()
            assert receiver.requests == []
            held.release()
            (requests,) = await received(receiver, 1)
            event = requests.event()
            response = await home.client.responses.retrieve(event.data.id)
            await home.until_owed(lambda owed: not owed)
    assert (event.type, event.object, event.data.id) == ("response.completed", "event", made.id)
    assert (event.id.startswith("evt_"), event.created_at >= made.created_at) == (True, True)
    assert (response.status, response.output_text) == ("completed", "all tidy")
    assert requests.headers["content-type"] == "application/json"


async def test_every_status_has_its_own_event(tmp_path: Path) -> None:
    held = stalls("working")
    lines = fails(Refused("no such model")), says("once upon a", cut="length"), held, says("never")
    with receiving() as receiver:
        async with webhook_home(tmp_path, receiver.url, *lines) as home:
            failed = await home.ask("one", conversation="s")
            await received(receiver, 1)
            cut = await home.ask("two", conversation="s")
            await received(receiver, 2)
            stopped = await home.ask("three", conversation="s")
            with anyio.fail_after(60):
                await held.reached.wait()
            await home.client.responses.cancel(stopped.id)
            events = [one.event() for one in await received(receiver, 3)]
    assert [(event.type, event.data.id) for event in events] == [
        ("response.failed", failed.id),
        ("response.incomplete", cut.id),
        ("response.cancelled", stopped.id),
    ]


async def test_a_response_that_ends_in_a_client_call_is_sent_and_so_is_the_one_that_continues(
    tmp_path: Path,
) -> None:
    with receiving() as receiver:
        lines = says("I ring", call("ring", times=1)), says("it rang")
        async with webhook_home(tmp_path, receiver.url, *lines) as home:
            first = await home.ask("ring", tools=[RING])
            await received(receiver, 1)
            (asked,) = [item for item in (await home.client.responses.retrieve(first.id)).output if "call" in item.type]
            result = {"type": "function_call_output", "call_id": getattr(asked, "call_id", ""), "output": "ding"}
            second = await home.ask([result], previous_response_id=first.id)
            requests = await received(receiver, 2)
            done = await home.client.responses.retrieve(second.id)
    assert [(one.event().type, one.response) for one in requests] == [
        ("response.completed", first.id),
        ("response.completed", second.id),
    ]
    assert done.output_text == "it rang"


async def test_only_background_responses_are_sent(tmp_path: Path) -> None:
    with receiving() as receiver:
        async with webhook_home(tmp_path, receiver.url, says("one"), says("two")) as home:
            await home.ask("now", conversation="s", background=False)
            later = await home.ask("later", conversation="s")
            (requests,) = await received(receiver, 1)
    assert requests.event().data.id == later.id


async def test_a_repeated_request_is_sent_once(tmp_path: Path) -> None:
    key = {"Idempotency-Key": "invoice-7"}
    with receiving() as receiver:
        async with webhook_home(tmp_path, receiver.url, says("paid"), says("never")) as home:
            made = await home.ask("pay", extra_headers=key)
            await received(receiver, 1)
            again = await home.ask("pay", extra_headers=key)
            other = await home.ask("something else")
            requests = await received(receiver, 2)
    assert made.id == again.id
    assert [one.event().data.id for one in requests] == [made.id, other.id]


async def test_a_failing_receiver_gets_the_same_event_again_under_the_same_id(tmp_path: Path) -> None:
    with receiving(Answer(500), Answer(302, {"location": "/elsewhere"}), Answer(404)) as receiver:
        async with webhook_home(tmp_path, receiver.url, says("done")) as home:
            made = await home.ask("go")
            requests = await received(receiver, 4)
            await home.until_owed(lambda owed: not owed)
    assert {(one.id, one.body, one.path) for one in requests} == {
        (requests[0].id, requests[0].body, "/hooks/t0k3n-in-the-path")
    }
    assert [one.event().data.id for one in requests] == [made.id] * 4


async def test_a_receiver_that_was_down_gets_the_event_when_it_is_up(tmp_path: Path) -> None:
    port = free_port()
    async with webhook_home(tmp_path, f"http://127.0.0.1:{port}/hooks", says("done")) as home:
        made = await home.ask("go")
        (waiting,) = await home.until_owed(lambda owed: any(hook.tries for hook in owed))
        with receiving(port=port) as receiver:
            (requests,) = await received(receiver, 1)
            await home.until_owed(lambda owed: not owed)
    assert (requests.event().data.id, requests.id) == (made.id, waiting.id)
    assert waiting.why.endswith("could not be reached: ConnectError")


async def test_a_webhook_pending_when_the_process_ended_is_sent_by_the_next(tmp_path: Path) -> None:
    async with webhook_home(tmp_path, f"http://127.0.0.1:{free_port()}/", says("done")) as home:
        made = await home.ask("go")
        (owed,) = await home.until_owed(lambda owed: any(hook.tries for hook in owed))
    with receiving() as receiver:
        async with webhook_home(tmp_path, receiver.url):
            (requests,) = await received(receiver, 1)
    assert (requests.event().data.id, requests.id) == (made.id, owed.id)


async def test_a_receiver_that_responds_gone_is_not_called_again_and_that_is_counted(tmp_path: Path) -> None:
    with receiving(Answer(410)) as receiver:
        async with (
            webhook_home(tmp_path, receiver.url, says("one"), says("two")) as home,
            client_for(home.url) as watcher,
        ):
            await home.ask("first")
            await home.until_owed(lambda owed: bool(receiver.requests) and not owed)
            await home.ask("second")
            requests = await received(receiver, 2)
            await home.until_owed(lambda owed: not owed)
            health = (await watcher.get("/health")).json()
            metrics = (await watcher.get("/metrics")).text
    assert len({one.id for one in requests}) == 2
    assert (health["webhooks_pending"], health["webhooks_failed"]) == (0, 1)
    assert "\noutrider_webhooks_pending 0\n" in metrics
    assert "\noutrider_webhooks_failed 1\n" in metrics


async def test_attempts_are_limited_and_giving_up_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = DeliveryPolicy(RetryPolicy(attempts=2, first=0.01))
    with receiving(Answer(500), Answer(503)) as receiver:
        async with webhook_home(tmp_path, receiver.url, says("done"), policy=policy) as home:
            await home.ask("go")
            requests = await received(receiver, 2)
            await home.until_owed(lambda owed: not owed)
            assert await home.store.count_webhooks() == WebhookCount(failed=1)
    assert (len(receiver.requests), len({one.id for one in requests})) == (2, 1)
    assert re.search(r"giving up webhook wh_\w+ after attempt 2: 127.0.0.1:", caplog.text)


async def test_a_receiver_that_asks_for_a_pause_gets_it(tmp_path: Path) -> None:
    with receiving(Answer(503, {"retry-after": "3600"})) as receiver:
        async with webhook_home(tmp_path, receiver.url, says("done")) as home:
            asked = time.time()
            await home.ask("go")
            (waiting,) = await home.until_owed(lambda owed: any(hook.tries for hook in owed))
    assert (waiting.tries, waiting.due >= (asked + 3600) * 1000, len(receiver.requests)) == (1, True, 1)


async def test_the_default_attempts_take_about_a_day() -> None:
    policy = DeliveryPolicy().retry
    waits = [min(policy.longest, policy.first * policy.factor**n) for n in range(policy.attempts - 1)]
    assert 18 * 3600 < 0.75 * sum(waits) < 30 * 3600  # a wait is between half of this and all of it


async def test_a_slow_receiver_delays_nothing_else(tmp_path: Path) -> None:
    go_on = threading.Event()
    policy = DeliveryPolicy(QUICK.retry, max_concurrent=2)
    with receiving(*[Answer(until=go_on)] * 2) as receiver:
        async with webhook_home(tmp_path, receiver.url, says("done"), policy=policy) as home:
            made = [await home.ask(f"job {number}") for number in range(5)]
            await received(receiver, 2)
            now = await home.ask("and now?", background=False)
            assert (now.status, len(receiver.requests)) == ("completed", 2)
            go_on.set()
            requests = await received(receiver, 5)
            await home.until_owed(lambda owed: not owed)
    assert sorted(one.event().data.id for one in requests) == sorted(one.id for one in made)


async def test_a_receiver_that_does_not_respond_is_called_again(tmp_path: Path) -> None:
    go_on = threading.Event()
    with receiving(Answer(until=go_on)) as receiver:
        async with webhook_home(
            tmp_path, receiver.url, says("done"), policy=DeliveryPolicy(QUICK.retry, timeout=0.05)
        ) as home:
            await home.ask("go")
            requests = await received(receiver, 2)
            await home.until_owed(lambda owed: not owed)
        go_on.set()
    assert len({(one.id, one.body) for one in requests}) == 1


async def test_a_deleted_session_has_no_pending_webhooks(tmp_path: Path) -> None:
    held = stalls("working")
    with receiving() as receiver:
        async with webhook_home(tmp_path, receiver.url, held, says("never")) as home:
            made = await home.ask("go", conversation="s")
            with anyio.fail_after(60):
                await held.reached.wait()
            await home.agent.delete(await home.agent.find("s"))
            assert await home.store.count_webhooks() == WebhookCount()
            held.release()
            other = await home.ask("go", conversation="t")
            await anyio.to_thread.run_sync(receiver.wait_for, other.id)
            await home.until_owed(lambda owed: not owed)
    requests = [(one.event().type, one.response) for one in receiver.requests]
    assert requests in (
        [("response.completed", other.id)],
        [("response.cancelled", made.id), ("response.completed", other.id)],
    )


@pytest.mark.promise("S14")
async def test_a_changed_late_or_forged_event_does_not_verify(tmp_path: Path) -> None:
    with receiving() as receiver:
        async with webhook_home(tmp_path, receiver.url, says("done")) as home:
            await home.ask("go")
            (requests,) = await received(receiver, 1)
    assert requests.event().type == "response.completed"
    stamp = int(requests.headers["webhook-timestamp"])
    for changed in (
        ReceivedRequest(requests.path, requests.headers, requests.body.replace(b"completed", b"failed")),
        ReceivedRequest(requests.path, {**requests.headers, "webhook-id": "wh_other"}, requests.body),
        ReceivedRequest(requests.path, {**requests.headers, "webhook-timestamp": str(stamp + 1)}, requests.body),
        ReceivedRequest(requests.path, {**requests.headers, "webhook-timestamp": str(stamp - 301)}, requests.body),
    ):
        with pytest.raises(openai.InvalidWebhookSignatureError):
            changed.event()
    with pytest.raises(openai.InvalidWebhookSignatureError):
        requests.event("whsec_" + "A" * 43 + "=")


async def test_neither_the_secret_nor_the_path_of_the_url_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "outrider")
    with receiving(Answer(500)) as receiver:
        async with webhook_home(tmp_path, receiver.url, says("done")) as home:
            await home.ask("go")
            await received(receiver, 2)
            await home.until_owed(lambda owed: not owed)
    ours = [record.getMessage() for record in caplog.records if record.name == "outrider.webhooks"]
    assert [SECRET[6:20] in line or "t0k3n" in line for line in ours] == [False, False]


def test_outrider_up_generates_a_private_secret_once(tmp_path: Path) -> None:
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
                requests = receiver.wait_for(made.json()["id"])
            assert {one.event(file.read_text().strip()).type for one in requests} == {"response.completed"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    log = (person.home / "logs" / "outrider.log").read_text()
    assert (str(file) in log, file.read_text()[6:20] in log, "t0k3n" in log) == (True, False, False)


@pytest.mark.parametrize("url", ["http://[t0k3n/", "http://host:t0k3n/", "http://host:99999/t0k3n"])
def test_an_invalid_url_is_refused_at_the_start(tmp_path: Path, url: str) -> None:
    person = Person(tmp_path)
    person.uses("", "practice", OUTRIDER_WEBHOOK_URL=url)
    ran = person.types("up", "--port", "0")
    assert (ran.code, "webhook.url is not a valid URL" in ran.err, "t0k3n" in ran.err) == (2, True, False)


@pytest.mark.parametrize("text", ["hunter2hunter2", "whsec_c2hvcnQ=", "whsec_!!!", "env:NOT_THERE"])
def test_an_invalid_secret_is_refused_at_the_start_without_being_shown(tmp_path: Path, text: str) -> None:
    person = Person(tmp_path)
    person.uses("", "practice", OUTRIDER_WEBHOOK_URL="http://127.0.0.1:9/", OUTRIDER_WEBHOOK_SECRET=text)
    ran = person.types("up", "--port", "0")
    assert (ran.code, "webhook.secret" in ran.err, text[6:] in ran.err and "env:" not in text) == (2, True, False)
    assert not (person.home / "webhook_secret").exists()
