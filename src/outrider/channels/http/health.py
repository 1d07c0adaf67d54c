"""How this Outrider is, for whoever watches over it; and what its API looks like."""

from starlette.requests import Request
from starlette.responses import Response

from outrider.app.health import HealthMonitor, HealthSnapshot
from outrider.channels.http.endpoints import (
    EndpointRoute,
    EndpointSpec,
    json_response,
    openapi_document,
    reader_agent,
    route,
)
from outrider.channels.http.inputs import Caller, context
from outrider.channels.http.schemas import HealthStatus, HealthView, StoreHealth
from outrider.channels.http.webhooks import webhook_store

_METRICS = "text/plain; version=0.0.4"


async def health(request: Request) -> Response:
    here = context(request)
    finding = await here.health.check(here.agent.health, lambda: webhook_store(here.agent).count_webhooks())
    has_key = isinstance(request.scope.get("state", {}).get("caller"), Caller)
    found = _health_view(finding, here.health, here.version) if has_key else HealthView(_health_status(finding))
    return json_response(found, 200 if found.status == "ok" else 503)


def _health_status(finding: HealthSnapshot) -> HealthStatus:
    return "failing" if finding.problem else "ok"


def _health_view(finding: HealthSnapshot, pulse: HealthMonitor, version: str) -> HealthView:
    vitals = finding.report
    return HealthView(
        status=_health_status(finding),
        version=version,
        uptime=round(pulse.uptime, 3),
        problem=finding.problem,
        store=StoreHealth(pulse.seconds_since_ok, vitals and vitals.read, vitals and vitals.write),
        is_carrying=vitals and vitals.is_worker_running,
        sessions_waiting=vitals and vitals.waiting,
        turns_running=vitals and vitals.turns,
        tasks_open=vitals and vitals.tasks,
        webhooks_pending=vitals and finding.webhooks.pending,
        webhooks_failed=vitals and finding.webhooks.failed,
    )


async def metrics(request: Request) -> Response:
    reader_agent(request)
    here = context(request)
    finding = await here.health.check(here.agent.health, lambda: webhook_store(here.agent).count_webhooks())
    return Response("\n".join([*_metrics(finding, here.health), ""]), media_type=_METRICS)


def _metrics(finding: HealthSnapshot, pulse: HealthMonitor) -> list[str]:
    vitals = finding.report
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
    return lines + [f'{name}{{status="{status}"}} {count}' for status, count in sorted(pulse.responses.items())]


def _metric(name: str, kind: str, what: str, value: float) -> tuple[str, str, str]:
    return f"# HELP {name} {what}", f"# TYPE {name} {kind}", f"{name} {value}"


async def openapi(request: Request) -> Response:
    found = [each for one in request.app.routes if isinstance(one, EndpointRoute) for each in one.operations]
    return json_response(openapi_document(found, context(request).version))


ROUTES = (
    route(
        "/health",
        health,
        "GET",
        about=EndpointSpec(
            summary="Whether this Outrider works, found out by trying; 503 when not. More with a key",
            answer=HealthView,
            others={503: HealthView},
            needs_key=False,
        ),
    ),
    route(
        "/metrics",
        metrics,
        "GET",
        about=EndpointSpec(summary="Numbers for Prometheus", media="text/plain"),
    ),
    route("/openapi.json", openapi, "GET", about=EndpointSpec(summary="This description")),
)
