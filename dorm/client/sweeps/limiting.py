"""How many apps of a sweep run at once: an edit of one of its apps, which counts for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.client import steering
from dorm.client.errors import Refused
from dorm.client.sweeps.finding import find_sweep
from dorm.core.gates import limit_of

if TYPE_CHECKING:
    from dorm.client.client import Client


async def set_parallel(client: Client, sweep: str, parallel: int) -> int:
    """Let at most `parallel` apps of a sweep run at once, 0 for no limit; return the limit before.  Raises NotFound;
    Refused if no app of it is left to run, or it has this limit already; and as `dorm.client.steering.edit`."""
    apps = find_sweep(await client.state(), sweep, client.user)
    live = [app for app in apps if not app.ended and not app.cancel_requested]
    if not live:
        raise Refused(f"all apps of the sweep {sweep} have ended already, so nothing of it can start", code="app.ended")
    app = live[-1]
    before, spec = limit_of(app), app.owners_spec
    if before == parallel:
        raise Refused(
            f"the sweep {sweep} has this limit already; `dorm sweep show {sweep}` shows it", code="edit.no_change"
        )
    assert spec.group is not None, "it is one of a sweep"
    edited = msgspec.structs.replace(spec, group=msgspec.structs.replace(spec.group, parallel=parallel))
    await steering.edit(client, app.id, edited, made_from=spec)
    return before
