"""Sweeps over HTTP: submitted once however often they are sent, compared, paged, cancelled."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from events.kinds import AppCancelRequested, AppSubmitted
from tests.api.served import connected, led, served
from tests.api.test_writes import said
from tests.core.records import document

if TYPE_CHECKING:
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats

SWEEP = {**document("lr"), "sweep": {"rate": [0.1, 0.01, 0.001], "seed": {"range": 2}}, "parallel": 2}


async def test_values_arrive_as_they_are_written(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, led(connection, "a", "b"), served(connection) as api:
        sweep = {**SWEEP, "sweep": "HERE", "command": ["work", "{p}"]}
        for name, type_, body in (
            (
                "json",
                "application/json",
                json.dumps({**sweep, "name": "json"}).replace('"HERE"', '{"p": [1.0, 0.10, 1e5]}'),
            ),
            (
                "yaml",
                "application/yaml",
                json.dumps({**sweep, "name": "yaml"}).replace('"HERE"', "{p: [1.0, 0.10, 1e5, 010, no]}"),
            ),
        ):
            async with api.session.post("/v1/sweeps", data=body, headers={"Content-Type": type_}) as answer:
                assert answer.status == 202, await answer.text()
            found = [one.spec for one in await said(connection.log, AppSubmitted) if one.spec["name"].startswith(name)]
            assert [one["command"][1] for one in found] == ["1.0", "0.10", "1e5", "010", "no"][: len(found)]
            assert len(found) == (3 if name == "json" else 5)


async def test_a_sweep_is_submitted_shown_and_cancelled(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, led(connection, "a", "b"), served(connection) as api:
        made = await api.send("POST", "/v1/sweeps", SWEEP)
        assert (made["name"], made["count"], made["new"], made["before"]) == ("lr", 6, 6, 0)
        again = await api.send("POST", "/v1/sweeps", SWEEP)
        assert (again["new"], again["before"]) == (0, 6)
        assert len(await said(connection.log, AppSubmitted)) == 6

        (listed,) = (await api.get(f"/v1/sweeps?min_seq={made['position']}"))["items"]
        assert (listed["name"], listed["count"], listed["submitted"], listed["parallel"]) == ("lr", 6, 6, 2)
        assert sum(listed["phases"].values()) == 6
        assert not listed["ended"]
        assert (await api.get(f"/v1/sweeps?after={listed['position']}"))["items"] == []
        assert (await api.get("/v1/sweeps?user=nobody"))["items"] == []

        whole = await api.get("/v1/sweeps/lr")
        assert whole["parameters"] == ["rate", "seed"]
        assert [one["parameters"] for one in whole["apps"][:2]] == [{"rate": 0.1, "seed": 0}, {"rate": 0.1, "seed": 1}]
        page = await api.get("/v1/sweeps/lr?limit=4&by=container_s")
        rest = await api.get(f"/v1/sweeps/lr?limit=4&by=container_s&after={page['next']}")
        assert rest["next"] is None
        assert sorted(one["index"] for one in [*page["apps"], *rest["apps"]]) == [0, 1, 2, 3, 4, 5]

        for method, path, body, status, code in (
            ("POST", "/v1/sweeps?most=3", {**SWEEP, "name": "more"}, 422, "sweep.too_many"),
            ("POST", "/v1/sweeps", document("plain"), 422, "sweep.parameters.missing"),
            ("POST", "/v1/sweeps", {**SWEEP, "parallel": 3}, 409, "sweep.name.taken"),
            ("POST", "/v1/sweeps/lrr/cancel", {}, 404, "sweep.not_found"),
        ):
            assert (await api.send(method, path, body, status))["code"] == code
        assert (await api.get("/v1/sweeps/lrr", 404))["code"] == "sweep.not_found"
        assert (await api.get("/v1/sweeps/lr?by=speed", 400))["code"] == "api.parameter.malformed"
        assert len(await said(connection.log, AppSubmitted)) == 6
        assert not await said(connection.log, AppCancelRequested)

        asked = await api.send("POST", "/v1/sweeps/lr/cancel", {"reason": "wrong data"})
        assert (asked["name"], asked["apps"]) == ("lr", 6)
        await api.reach(int(asked["position"]))
        assert (await api.send("POST", "/v1/sweeps", SWEEP, 409))["code"] in ("sweep.cancelled", "sweep.over")
