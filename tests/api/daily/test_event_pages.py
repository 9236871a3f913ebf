"""Pages of events include the progress beside the log, and neither lose nor repeat events, in either direction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dorm.client.tail import Filter, Tail
from events.codec import encode
from events.kinds import AppProgressed
from events.subjects import progress
from tests.api.served import connected, filled, served
from tests.api.test_reads import pages
from tests.replay.busy import busy_log

if TYPE_CHECKING:
    from events.nats.connection import Connection
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats

RECORDS = busy_log(160, apps=4, nodes=2)
APPS = ("made-abcdef", "other-abcdef")


async def reported(connection: Connection, steps: range, app: str) -> None:
    for step in steps:
        said = AppProgressed(id=f"n1.{app}-1-0.AppProgressed.{step}", app=app, generation=1, step=step)
        await connection.log.progress.put(progress(connection.cluster, "n1", app), encode(said), msg_id=said.id)


async def grown(connection: Connection, first: int, last: int) -> None:
    """Append records, with little progress between some and much between others."""
    for start in range(first, last, 20):
        await filled(connection, RECORDS[start : min(start + 20, last)])
        await reported(connection, range(start, start + (60 if start == 40 else 3)), APPS[0])
        await reported(connection, range(start, start + 2), APPS[1])


def places(found: list[list[dict[str, Any]]]) -> list[str]:
    return [one["position"] for page in found for one in page]


async def test_pages_contain_the_progress_beside_the_log(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection:
        await grown(connection, 0, 120)
        async with served(connection) as api:
            wanted = {
                "": Filter(),
                "&kind=AppProgressed": Filter(kinds=("AppProgressed",)),
                f"&app={APPS[1]}": Filter(apps=(APPS[1],)),
                "&kind=Resized": Filter(kinds=("Resized",)),
            }
            for limit in (7, 100):
                for query, which in wanted.items():
                    tail = Tail(connection.log, connection.cluster, which)
                    expected = [str(one.position) async for one in tail.events()]
                    assert expected
                    forward = await pages(api, f"/v1/events?limit={limit}{query}", "after", "&after=0")
                    assert places(forward) == expected
                    back = await pages(api, f"/v1/events?limit={limit}{query}", "before")
                    shown = [places([page]) for page in back]
                    assert all(page == [one for one in expected if one in set(page)] for page in shown)
                    assert sorted(one for page in shown for one in page) == sorted(expected)

            # What comes between two pages, and after the last one, comes once.
            page = await api.get("/v1/events?limit=90&after=0")
            seen = places([page["items"]])
            await grown(connection, 120, 160)
            await api.reach(160)
            while page["next"] is not None:
                page = await api.get(f"/v1/events?limit=90&after={page['next']}")
                seen += places([page["items"]])
            await reported(connection, range(900, 903), APPS[1])
            page = await api.get(f"/v1/events?after={page['position']}")
            assert [one["body"]["step"] for one in page["items"]] == [900, 901, 902]
            seen += places([page["items"]])
            assert len(set(seen)) == len(seen)
            everything = [one async for one in Tail(connection.log, connection.cluster, Filter()).events()]
            assert len(seen) == len(everything)
            # A place in the page is a place in the log: what lies before an event of progress, and before one of the log.
            at = next(place for place, one in enumerate(everything) if one.position.beside == 30)
            for place in (at, at + 40):
                before = await api.get(f"/v1/events?limit=5&before={everything[place].position}")
                assert places([before["items"]]) == [str(one.position) for one in everything[place - 5 : place]]
