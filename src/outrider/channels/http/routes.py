"""Everything that is served."""

from starlette.routing import Route

from outrider.channels.http import (
    routes_admin,
    routes_asks,
    routes_chat,
    routes_events,
    routes_health,
    routes_models,
    routes_responses,
    routes_sessions,
    routes_tasks,
)

ROUTES: tuple[Route, ...] = (
    *routes_health.ROUTES,
    *routes_sessions.ROUTES,
    *routes_events.EVENT_ROUTES,
    *routes_tasks.ROUTES,
    *routes_asks.ROUTES,
    *routes_chat.ROUTES,
    *routes_models.ROUTES,
    *routes_responses.ROUTES,
    *routes_admin.ROUTES,
)
