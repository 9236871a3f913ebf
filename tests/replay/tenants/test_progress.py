"""A tenant reads only the progress of its own apps beside the log."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

from events import kinds as k
from events import subjects
from events.codec import decode, encode
from events.log.stores import MemoryProgress
from replay.tenants.log import OwnProgress
from tests.replay.made_log import CLUSTER
from tests.replay.tenants.lives import BOB, Life

if TYPE_CHECKING:
    from events.log.records import Record
    from replay.tenants.shared_views import Views


class _Views:
    def __init__(self, life: Life) -> None:
        self.state = life.state


async def test_only_own_progress() -> None:
    life = Life(2, hostile=False).play(30)
    apps = {tenant: [app for app in life.state.apps.values() if app.tenant == tenant] for tenant in ("alice", BOB)}
    progress = MemoryProgress(lambda: life.now)
    for step in range(6):
        for tenant in ("alice", BOB):
            app = apps[tenant][step % len(apps[tenant])]
            said = k.AppProgressed(app=app.id, generation=1, step=step, loss=0.5)
            await progress.put(subjects.progress(CLUSTER, "n0", app.id), encode(said), msg_id=f"{tenant}.{step}")
    own = OwnProgress(progress, cast("Views", _Views(life)), "alice")
    read: list[Record] = []
    async with contextlib.aclosing(own.read()) as batches:
        async for batch in batches:
            read += batch
    mine = {app.id for app in apps["alice"]}
    assert [decode(one).app in mine for one in read] == [True] * 6  # type: ignore[attr-defined]
    newest = {decode(one).app for one in await own.newest()}  # type: ignore[attr-defined]
    assert newest == {decode(one).app for one in read}  # type: ignore[attr-defined]
    assert await own.newest(apps[BOB][0].id) == []
    # The control: the stream has all of it.
    assert len(await progress.newest(apps[BOB][0].id)) == 1
