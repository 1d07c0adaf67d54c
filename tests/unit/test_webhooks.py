"""Webhook signatures, and the queries for pending webhooks."""

import sqlite3
from collections.abc import Iterator

import pytest

from outrider.channels.http.webhooks import parse_secret, render_webhook_event, signed_headers
from outrider.config.secrets import Secret
from outrider.core.errors import Refused
from outrider.store import webhooks as sql_hooks
from outrider.store.migrations import MIGRATIONS, apply_migrations, load_migrations
from outrider.store.webhooks import WebhookDelivery


def test_the_published_example_is_signed_as_published() -> None:
    secret = Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed_headers(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers == {
        "content-type": "application/json",
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_the_same_end_is_the_same_event_byte_for_byte() -> None:
    hook = WebhookDelivery("wh_1", "5e55", "ann", 3, 1)
    assert render_webhook_event(hook, "failed", 1_700_000_000_999) == (
        b'{"id":"evt_1","object":"event","created_at":1700000000,"type":"response.failed","data":{"id":"resp_5e55_3"}}'
    )


@pytest.mark.parametrize(
    "text", ["", "whsec_", "whsec_c2hvcnQ=", "whsec_é", "whsec_" + "A" * 200, "WHSEC_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
)
def test_an_invalid_secret_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(Refused, match=r"webhook.secret is not valid: it must be whsec_ followed by") as refused:
        parse_secret(Secret(text))
    assert not text[6:] or text[6:] not in str(refused.value)


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    home = sqlite3.connect(":memory:", isolation_level=None)
    apply_migrations(home, load_migrations(MIGRATIONS))
    yield home
    home.close()


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (sql_hooks.WEBHOOK_BY_INPUT, "hooks_by_input (session=? AND seq=?)"),
        (sql_hooks.PENDING_WEBHOOKS, "hooks_not_sent (state=?)"),
        (sql_hooks.COUNT_WEBHOOKS, "hooks_not_sent"),
        (sql_hooks.DELETE_WEBHOOKS, "hooks_by_input (session=?)"),
    ],
)
def test_no_webhook_query_scans_the_whole_table(db: sqlite3.Connection, statement: str, index: str) -> None:
    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", ("",) * statement.count("?"))]
    assert [step for step in plan if f"INDEX {index}" in step], plan
