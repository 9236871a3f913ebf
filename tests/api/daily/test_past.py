"""The past over HTTP is that of `replay.past` and `replay.comparison`, in pages of one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from replay.comparison import differing, sides
from replay.past import gather, in_order, parse_condition, select
from tests.api.served import connected, filled, say, served
from tests.core.records import joined
from tests.replay.past.test_past import long_story

if TYPE_CHECKING:
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats


async def test_history_and_comparison(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(nats_server.url) as connection:
        records = long_story().records
        await filled(connection, records)
        rows = (await gather(connection.log)).apps
        async with served(connection) as api:
            expected = in_order(select(rows, conditions=[parse_condition("lr<0.5")]), "-lr")
            page = await api.get("/v1/history?metric=lr<0.5&sort=-lr&limit=2")
            assert page["items"] == msgspec.to_builtins(expected[:2])
            # The log grows, and the next page still shows the same moment.
            await api.reach(await say(connection.log, connection.cluster, joined("late"), "late"))
            items = page["items"]
            while page["next"] is not None:
                page = await api.get(f"/v1/history?metric=lr<0.5&sort=-lr&limit=2&after={page['next']}")
                assert page["position"] == str(len(records))
                items += page["items"]
            assert items == msgspec.to_builtins(expected)
            failed = await api.get("/v1/history?state=failed&sort=name")
            assert [one["name"] for one in failed["items"]] == [
                one.name for one in in_order(select(rows, states=["failed"]), "name")
            ]
            searched = await api.get("/v1/history?q=TEAM=vision")
            assert [one["name"] for one in searched["items"]] == ["app-07"]
            named = await api.get("/v1/history?name=app-0*&since=10&until=30")
            assert all(one["name"].startswith("app-0") for one in named["items"])

            names = [rows[0].id, rows[1].id]
            found = await sides(connection.log, names)
            compared = await api.get(f"/v1/history/compare?app={names[0]}&app={names[1]}")
            assert compared["apps"] == msgspec.to_builtins([side for side, _ in found])
            assert compared["spec"] == msgspec.to_builtins(differing([spec for _, spec in found]))
            assert compared["spec"]

            for query, status, code in (
                ("/v1/history?metric=loss", 422, "history.metric.malformed"),
                ("/v1/history?sort=a%20b", 422, "history.order.malformed"),
                ("/v1/history?state=odd", 400, "api.parameter.malformed"),
                ("/v1/history?after=-999999:x", 400, "api.parameter.malformed"),
                (f"/v1/history/compare?app={names[0]}", 400, "api.parameter.malformed"),
                ("/v1/history/compare?app=no&app=nobody", 404, "app.not_found"),
            ):
                assert (await api.get(query, status))["code"] == code


async def test_apps_that_the_cluster_still_keeps_take_no_fold(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dorm.api.past_folds.gather", None)
    async with connected(nats_server.url) as connection:
        await filled(connection, long_story(None).records)
        async with served(connection) as api:
            page = await api.get("/v1/history?since=-1h&limit=5&sort=name")
            names = [one["name"] for one in page["items"]]
            # The log grows, and the next pages still show the same moment.
            await api.reach(await say(connection.log, connection.cluster, joined("late"), "late"))
            while page["next"] is not None:
                page = await api.get(f"/v1/history?since=-1h&limit=5&sort=name&after={page['next']}")
                names += [one["name"] for one in page["items"]]
            assert names == [f"app-{number:02}" for number in range(12)]
