"""`/healthz` and `/readyz` over HTTP.

Both answer with JSON.  `/healthz` states that the process is alive and checks nothing; `/readyz` answers with a `Report`, and
with 503 if a check does not hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

if TYPE_CHECKING:
    from dorm.health.checks import Health

_encode = msgspec.json.Encoder().encode


def add_pages(app: web.Application, health: Health) -> None:
    """Serve the two pages with `app`."""

    async def alive(request: web.Request) -> web.Response:
        return _page(_encode({"alive": True, "version": health.version}), 200)

    async def ready(request: web.Request) -> web.Response:
        report = await health.report()
        return _page(_encode(report), 200 if report.ready else 503)

    app.router.add_get("/healthz", alive)
    app.router.add_get("/readyz", ready)


def _page(body: bytes, status: int) -> web.Response:
    return web.Response(body=body + b"\n", status=status, content_type="application/json")
