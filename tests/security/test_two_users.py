"""Two users on one `dorm up`, one of them hostile: none of the other's apps is changed, cancelled or taken."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from dorm.client.opening import open_client
from events import kinds as k
from events import subjects
from events.codec import decode, encode
from events.nats.access import read_credentials
from events.nats.connection import Connection
from tests.e2e.commands import done
from tests.e2e.local_up import leaving_nothing, talker, up
from tests.e2e.story import until

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.core.state import App
    from events.nats.access import Credentials

pytestmark = [pytest.mark.nats, pytest.mark.slow]


async def attack(me: Credentials, victim: App) -> None:
    """Say about another's app whatever the server lets a user say, past the client's own checks."""
    connection = await Connection.open(me.url, me.cluster, credentials=me)
    acts: list[k.Event] = [
        k.AppCancelRequested(id="m.1", by="alice", app=victim.id, reason="mine"),
        k.AppUpdated(id="m.2", by="alice", app=victim.id, n_max=1, weight=0.001),
        k.AppHoldRequested(id="m.5", by="alice", app=victim.id, reason="mine"),
        k.AppSubmitted(id=victim.submission, by="alice", spec={**talker("hers"), "user": "alice"}),
        k.AppEditRequested(id="m.4", by="alice", app=victim.id, spec=talker("hers", code=9)),
        k.AppRestartRequested(id="m.5", by="alice", app=victim.id, fresh=True),
        k.AppSubmitted(id="m.3", by="alice", spec=talker("theirs", lines=3)),
    ]
    for act in acts:
        await connection.log.append(subjects.fact(me.cluster, type(act).__name__, me.name), encode(act))
    await connection.log.append(subjects.fact(me.cluster, "AppSubmitted", me.name), b"\xff" * 100_000)
    await connection.close()


async def test_a_hostile_user_gets_nothing_of_another_users_app(tmp_path: Path) -> None:
    async with leaving_nothing(tmp_path) as folder, up(folder, "--trust-apps", known=True) as cluster:
        who = {}
        for name, role in (("alice", "user"), ("mallory", "user"), ("rita", "reader")):
            await done(cluster.home, "user", "add", name, "--role", role, "--to", str(tmp_path / f"{name}.json"))
            who[name] = read_credentials(tmp_path / f"{name}.json")
        async with await open_client(cluster.url, "local", credentials=who["alice"]) as alice:
            app = await alice.submit(talker("hers", lines=100, n_max=2))
            await until(alice, lambda state: state.apps[app.id].phase == "running", "it runs")
            await attack(who["mallory"], await alice.app(app.id))
            ended = await asyncio.wait_for(alice.wait(app.id), 60)
            assert (ended.ended, ended.user, ended.n_max, ended.weight) == ("completed", "alice", 2, 1)
            assert (ended.revision, ended.failures) == (1, 0)
        # The control: mallory's records count for mallory's apps, although they claim to be alice's.
        async with await open_client(cluster.url, "local", credentials=who["rita"]) as rita:
            state = await until(
                rita, lambda state: any(one.name == "theirs" for one in state.apps.values()), "it is in"
            )
            assert {one.user for one in state.apps.values() if one.id != app.id} == {"mallory"}
            events = [event async for batch in rita.log.read() for event in map(decode, batch)]
            facts = [fact for event in events if isinstance(event, k.Round) for fact in event.events]
            about = {type(fact).__name__ for fact in facts if getattr(fact, "app", "") == app.id}
            assert "AppCompleted" in about
            assert about.isdisjoint(("AppRevised", "AppRestarted", "AppCancelled", "AppFailed"))
            assert state.known is not None
            assert {refusal.who for refusal in state.known.refusals} == {"mallory"}
