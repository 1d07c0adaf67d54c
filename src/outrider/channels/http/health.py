"""`/health` and `/metrics`: whether the server works, determined by trying."""

from starlette.responses import Response

from outrider.app.health import HealthReport, HealthSnapshot, OwnWork
from outrider.channels.http.endpoints import ANONYMOUS, ApiCall, HttpContext, endpoint, json_response
from outrider.channels.http.schemas import HealthStatus, HealthView, StoreHealth
from outrider.channels.http.webhooks import webhook_store

_METRICS = "text/plain; version=0.0.4"


@endpoint("GET", "/health", scope="public", results={200: HealthView, 503: HealthView})
async def get_health(call: ApiCall) -> Response:
    """Check whether the server works; 503 when it does not.

    A key gets the counts of its person's own work, and with the scope `admin` all details.
    """
    snapshot = await _check(call.context)
    status: HealthStatus = "failing" if snapshot.problem else "ok"
    if call.caller is ANONYMOUS:
        view = HealthView(status)
    elif call.caller.may("admin"):
        view = _health_view(snapshot, status, call.context)
    else:
        view = await _own_view(snapshot, status, call)
    return json_response(view, 503 if snapshot.problem else 200)


@endpoint("GET", "/metrics", scope="read", media_types=["text/plain"])
async def get_metrics(call: ApiCall) -> Response:
    """Get metrics for Prometheus: of everyone's work with the scope `admin`, else of one's own."""
    snapshot = await _check(call.context)
    lines = _metrics(snapshot, call.context) if call.caller.may("admin") else await _own_metrics(snapshot, call)
    return Response("\n".join([*lines, ""]), media_type=_METRICS)


async def _check(context: HttpContext) -> HealthSnapshot:
    return await context.health.check(context.agent.health, lambda: webhook_store(context.agent).count_webhooks())


def _health_view(snapshot: HealthSnapshot, status: HealthStatus, context: HttpContext) -> HealthView:
    report = snapshot.report
    return HealthView(
        status=status,
        version=context.version,
        uptime=round(context.health.uptime, 3),
        problem=snapshot.problem,
        store=StoreHealth(context.health.seconds_since_ok, report and report.read, report and report.write),
        is_worker_running=report and report.is_worker_running,
        sessions_waiting=report and report.waiting,
        turns_running=report and report.turns,
        tasks_open=report and report.tasks,
        webhooks_pending=report and snapshot.webhooks.pending,
        webhooks_failed=report and snapshot.webhooks.failed,
    )


async def _own_view(snapshot: HealthSnapshot, status: HealthStatus, call: ApiCall) -> HealthView:
    own = await call.agent.own_work() if snapshot.report else None
    return HealthView(
        status=status,
        version=call.context.version,
        sessions_waiting=own and own.waiting,
        turns_running=own and own.turns,
        tasks_open=own and own.tasks,
    )


async def _own_metrics(snapshot: HealthSnapshot, call: ApiCall) -> list[str]:
    lines = [*_up_metric(snapshot)]
    return [*lines, *_work_metrics(await call.agent.own_work())] if snapshot.report else lines


def _metrics(snapshot: HealthSnapshot, context: HttpContext) -> list[str]:
    report, uptime = snapshot.report, round(context.health.uptime, 3)
    lines = [
        *_up_metric(snapshot),
        *_metric("outrider_uptime_seconds", "gauge", "seconds since this process began to serve", uptime),
    ]
    if report:
        webhooks = snapshot.webhooks
        lines += [
            *_work_metrics(report),
            *_metric("outrider_webhooks_pending", "gauge", "webhooks still to be sent", webhooks.pending),
            *_metric("outrider_webhooks_failed", "gauge", "webhooks that were given up", webhooks.failed),
            *_metric("outrider_store_read_seconds", "gauge", "duration of the last test read", report.read),
            *_metric("outrider_store_write_seconds", "gauge", "duration of the last test write", report.write),
        ]
    name = "outrider_http_requests_total"
    lines += [f"# HELP {name} requests by response status", f"# TYPE {name} counter"]
    responses = sorted(context.health.responses.items())
    return lines + [f'{name}{{status="{status}"}} {count}' for status, count in responses]


def _up_metric(snapshot: HealthSnapshot) -> tuple[str, ...]:
    return _metric("outrider_up", "gauge", "1 when the store responds and turns run", 0 if snapshot.problem else 1)


def _work_metrics(work: HealthReport | OwnWork) -> list[str]:
    return [
        *_metric("outrider_sessions_waiting", "gauge", "sessions that have work", work.waiting),
        *_metric("outrider_turns_running", "gauge", "turns that are running", work.turns),
        *_metric("outrider_tasks_open", "gauge", "tasks that have not ended", work.tasks),
    ]


def _metric(name: str, kind: str, help: str, value: float) -> tuple[str, str, str]:
    return f"# HELP {name} {help}", f"# TYPE {name} {kind}", f"{name} {value}"


ENDPOINTS = (get_health, get_metrics)
