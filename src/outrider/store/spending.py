"""What a key may spend, as people write it, and which days a limit counts. Pure."""

import re
from datetime import UTC, datetime, timedelta

from outrider.core.errors import Refused
from outrider.core.key_ports import SpendLimit

LEAST, MOST = 0.0001, 1_000_000.0
DAY_MS = 86_400_000
_SPEND_PATTERN = re.compile(r"\$?(\d{1,7}(?:\.\d{1,9})?)(?:/(day|month))?", re.ASCII)


def parse_spend(text: str) -> SpendLimit:
    """`5/day`, `20/month`, or `5` for a total. Raises Refused."""
    found = _SPEND_PATTERN.fullmatch(text.strip())
    if found is None or not LEAST <= float(found[1]) <= MOST:
        raise Refused(
            f"{text[:40]!r} is no limit: write dollars, such as 5/day, 20/month, or 5 for all it will ever spend"
        )
    match found[2]:
        case "day":
            return SpendLimit(float(found[1]), "day")
        case "month":
            return SpendLimit(float(found[1]), "month")
        case _:
            return SpendLimit(float(found[1]))


def render_spend(spend: SpendLimit) -> str:
    """As `parse_spend` reads it."""
    dollars = f"{spend.dollars:.9f}".rstrip("0").rstrip(".")
    return dollars if spend.per == "total" else f"{dollars}/{spend.per}"


def render_limit(spend: SpendLimit) -> str:
    """For people: `$5.00 a day`."""
    whole, _, parts = f"{spend.dollars:.9f}".rstrip("0").partition(".")
    dollars = f"${whole}.{parts:0<2}"
    return f"{dollars} in all" if spend.per == "total" else f"{dollars} a {spend.per}"


def first_day(spend: SpendLimit | None, now: int) -> int:
    """The first day that counts now (milliseconds), in days since 1970 in UTC."""
    today = now // DAY_MS
    match spend:
        case SpendLimit(per="day"):
            return today
        case SpendLimit(per="month"):
            return today - _utc(now).day + 1
        case _:
            return 0


def seconds_until_reset(spend: SpendLimit, now: int) -> float | None:
    """Until the next day or month begins, in UTC; None when nothing ever begins anew."""
    match spend.per:
        case "day":
            return (DAY_MS - now % DAY_MS) / 1000
        case "month":
            moment = _utc(now)
            following = (moment.replace(day=1, hour=0, minute=0, second=0) + timedelta(days=32)).replace(day=1)
            return following.timestamp() - now / 1000
        case "total":
            return None


def _utc(now: int) -> datetime:
    return datetime.fromtimestamp(now // 1000, UTC)
