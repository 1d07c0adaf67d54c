"""How this Outrider is, for whoever watches over it; and what its API looks like."""

from starlette.requests import Request
from starlette.responses import Response

from outrider.channels.http.app import Described, route
from outrider.channels.http.context import Caller, context
from outrider.channels.http.openapi import Operation, document
from outrider.channels.http.pulse import Finding, Pulse
from outrider.channels.http.reading import answer, reading
from outrider.channels.http.shapes import Health, Status, StoreHealth

_METRICS = "text/plain; version=0.0.4"


async def health(request: Request) -> Response:
    here = context(request)
    finding = await here.pulse.take(here.agent)
    has_key = isinstance(request.scope.get("state", {}).get("caller"), Caller)
    found = _detailed(finding, here.pulse, here.version) if has_key else Health(_status(finding))
    return answer(found, 200 if found.status == "ok" else 503)


def _status(finding: Finding) -> Status:
    return "failing" if finding.problem else "ok"


def _detailed(finding: Finding, pulse: Pulse, version: str) -> Health:
    vitals = finding.vitals
    return Health(
        status=_status(finding),
        version=version,
        uptime=round(pulse.uptime, 3),
        problem=finding.problem,
        store=StoreHealth(pulse.since_well, vitals and vitals.read, vitals and vitals.write),
        is_carrying=vitals and vitals.is_worker_running,
        sessions_waiting=vitals and vitals.waiting,
        turns_running=vitals and vitals.turns,
        tasks_open=vitals and vitals.tasks,
        webhooks_pending=vitals and finding.webhooks.pending,
        webhooks_failed=vitals and finding.webhooks.failed,
    )


async def metrics(request: Request) -> Response:
    reading(request)
    here = context(request)
    finding = await here.pulse.take(here.agent)
    return Response("\n".join([*_metrics(finding, here.pulse), ""]), media_type=_METRICS)


def _metrics(finding: Finding, pulse: Pulse) -> list[str]:
    vitals = finding.vitals
    lines = [
        *_metric("outrider_up", "gauge", "1 when the store answers and turns are carried", 0 if finding.problem else 1),
        *_metric("outrider_uptime_seconds", "gauge", "since this process began to serve", round(pulse.uptime, 3)),
    ]
    if vitals:
        lines += [
            *_metric("outrider_sessions_waiting", "gauge", "sessions that have something to do", vitals.waiting),
            *_metric("outrider_turns_running", "gauge", "sessions being carried", vitals.turns),
            *_metric("outrider_tasks_open", "gauge", "tasks that have not ended", vitals.tasks),
            *_metric("outrider_webhooks_pending", "gauge", "webhooks still to be sent", finding.webhooks.pending),
            *_metric("outrider_webhooks_failed", "gauge", "webhooks that were given up", finding.webhooks.failed),
            *_metric("outrider_store_read_seconds", "gauge", "what the last trial read took", vitals.read),
            *_metric("outrider_store_write_seconds", "gauge", "what the last trial write took", vitals.write),
        ]
    name = "outrider_http_requests_total"
    lines += [f"# HELP {name} requests by the status they were answered with", f"# TYPE {name} counter"]
    return lines + [f'{name}{{status="{status}"}} {count}' for status, count in sorted(pulse.answers.items())]


def _metric(name: str, kind: str, what: str, value: float) -> tuple[str, str, str]:
    return f"# HELP {name} {what}", f"# TYPE {name} {kind}", f"{name} {value}"


async def openapi(request: Request) -> Response:
    found = [each for one in request.app.routes if isinstance(one, Described) for each in one.served]
    return answer(document(found, context(request).version))


ROUTES = (
    route(
        "/health",
        health,
        "GET",
        about=Operation(
            summary="Whether this Outrider works, found out by trying; 503 when not. More with a key",
            answer=Health,
            others={503: Health},
            needs_key=False,
        ),
    ),
    route(
        "/metrics",
        metrics,
        "GET",
        about=Operation(summary="Numbers for Prometheus", media="text/plain"),
    ),
    route("/openapi.json", openapi, "GET", about=Operation(summary="This description")),
)
