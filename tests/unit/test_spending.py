"""Spending limits of keys: how they are written, and which days count."""

from datetime import UTC, datetime

import pytest

from outrider.core.errors import Refused
from outrider.core.store_port import SpendLimit
from outrider.store.keys import first_day, parse_spend, render_limit, render_spend, seconds_until_reset

HOUR, DAY = 3600, 86_400


def at(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp()) * 1000  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "limit", "rendered"),
    [
        ("5/day", SpendLimit(5.0, "day"), "5/day"),
        ("$20/month", SpendLimit(20.0, "month"), "20/month"),
        (" 0.50 ", SpendLimit(0.5), "0.5"),
        ("1000000", SpendLimit(1_000_000.0), "1000000"),
    ],
)
def test_a_limit_is_parsed_and_rendered_as_people_write_it(text: str, limit: SpendLimit, rendered: str) -> None:
    assert (parse_spend(text), render_spend(limit), parse_spend(rendered)) == (limit, rendered, limit)


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (SpendLimit(3.0), "$3.00 in total"),
        (SpendLimit(5.5, "day"), "$5.50 a day"),
        (SpendLimit(1_000_000.0, "month"), "$1000000.00 a month"),
        (SpendLimit(0.0001), "$0.0001 in total"),
    ],
)
def test_a_limit_is_displayed_in_dollars_and_cents(limit: SpendLimit, text: str) -> None:
    assert render_limit(limit) == text


@pytest.mark.parametrize(
    "text", ["", "0", "0/day", "-1", "5/week", "5/", "five", "1e3", "nan", "99999999", "5 /day", "٥"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="is not a spending limit"):
        parse_spend(text)


@pytest.mark.parametrize(
    ("now", "day", "month", "left_of_day", "left_of_month"),
    [
        (at(1970, 1, 1), 0, 0, DAY, 31 * DAY),
        (at(1970, 2, 28, 23), 58, 31, HOUR, HOUR),
        (at(2024, 2, 28, 12), 19781, 19754, 12 * HOUR, DAY + 12 * HOUR),
        (at(2026, 12, 31, 23, 59, 59), 20818, 20788, 1, 1),
    ],
)
def test_days_and_months_begin_at_midnight_in_utc(
    now: int, day: int, month: int, left_of_day: float, left_of_month: float
) -> None:
    daily, monthly, total = SpendLimit(1.0, "day"), SpendLimit(1.0, "month"), SpendLimit(1.0)
    assert [first_day(each, now) for each in (daily, monthly, total, None)] == [day, month, 0, 0]
    assert [seconds_until_reset(each, now) for each in (daily, monthly, total)] == [left_of_day, left_of_month, None]
