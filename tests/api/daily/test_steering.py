"""Edits and restarts over HTTP: as `dorm edit` and `dorm restart`, and compare-and-set by tags."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from events.kinds import AppEditRequested, AppRestarted, Round
from tests.api.served import JSON, PATIENCE_S, Api, connected, led, served
from tests.api.test_writes import said
from tests.core.records import document

if TYPE_CHECKING:
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats


async def tagged(api: Api, path: str) -> tuple[dict[str, Any], str]:
    """Return an app's spec, and the tag in its header."""
    async with api.session.get(path) as answer:
        assert answer.status == 200, await answer.text()
        found = await answer.json()
        assert answer.headers["ETag"] == f'"{found["tag"]}"'
        return found, answer.headers["ETag"]


async def placed(api: Api, app: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await api.get(f"/v1/apps/{app}"))["phase"] == "waiting":  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_specs_are_replaced_patched_and_tried(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, led(connection, "a", "b"), served(connection) as api:
        app = await api.send("POST", "/v1/apps", document("digits", env={"LR": "0.1", "SEED": "1"}))
        await placed(api, app["id"])
        path = f"/v1/apps/{app['id']}/spec"
        first, tag = await tagged(api, f"{path}?min_seq={app['position']}")
        assert (first["revision"], first["spec"]["env"]) == (1, {"LR": "0.1", "SEED": "1"})

        # A tried edit has its effect, and a trial leaves nothing on the log.
        before = await connection.log.end()
        tried = await api.send("POST", f"{path}/try", {"patch": {"weight": 2, "env": {"SEED": None}}}, 200)
        assert (tried["tag"], tried["at_once"]) == (first["tag"], {"weight": {"before": 1.0, "after": 2.0}})
        assert tried["by_restart"] == {"env": {"before": {"LR": "0.1", "SEED": "1"}, "after": {"LR": "0.1"}}}
        assert tried["restarts"]
        assert [(one["name"], one["kind"]) for one in tried["changes"]] == [("digits", "restart")]
        assert await connection.log.end() == before

        patch = {"weight": 2, "env": {"SEED": None}}
        edited = await api.send("PATCH", path, patch, headers={"If-Match": tag})
        assert (edited["revision"], edited["restarts"]) == (2, True)
        second, newer = await tagged(api, f"{path}?min_seq={edited['position']}")
        assert (second["tag"], second["spec"]["env"], second["spec"]["weight"]) == (edited["tag"], {"LR": "0.1"}, 2.0)
        old = await api.get(f"{path}?at={first['position']}")
        assert old["tag"] == first["tag"]

        asked = len(await said(connection.log, AppEditRequested))
        for method, body, headers, status, code in (
            ("PUT", first["spec"], {"If-Match": tag}, 412, "edit.stale"),
            ("PATCH", {"weight": 3}, {"If-Match": f"W/{tag}"}, 412, "edit.stale"),
            ("PATCH", {"weight": 3}, {"If-Match": "digits"}, 400, "api.if_match.malformed"),
            ("PATCH", {"weight": 2}, {}, 409, "edit.no_change"),
            ("PATCH", {"name": "other"}, {}, 409, "edit.another_app"),
            ("PATCH", {"weight": "much"}, {"If-Match": newer}, 409, "spec.weight.wrong_type"),
        ):
            refused = await api.send(method, path, body, status, headers)
            assert refused["code"] == code, refused
        assert len(await said(connection.log, AppEditRequested)) == asked
        assert (await api.send("POST", f"{path}/try", {}, 422))["code"] == "api.parameter.conflict"

        # A whole spec in YAML, in the place of whatever is there.
        body = b"name: digits\ncommand: [work]\ndemand: {cpu: 2}\nn_max: 5\n"
        async with api.session.put(path, data=body, headers={**JSON, "Content-Type": "application/yaml"}) as answer:
            assert answer.status == 202, await answer.text()
            assert (await answer.json())["revision"] == 3
        third, _ = await tagged(api, path)
        assert (third["spec"]["n_max"], third["spec"].get("env")) == (5, None)


async def test_restarts(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, led(connection, "a"), served(connection) as api:
        app = await api.send("POST", "/v1/apps", document("digits"))
        await placed(api, app["id"])
        done = await api.send("POST", f"/v1/apps/{app['id']}/restart", {"reason": "a new driver"})
        assert (done["id"], done["checkpoint"]) == (app["id"], None)
        await api.get(f"/v1/apps/{app['id']}?min_seq={done['position']}")
        restarts = [
            fact for one in await said(connection.log, Round) for fact in one.events if isinstance(fact, AppRestarted)
        ]
        assert [(one.app, one.fresh, one.reason) for one in restarts] == [(app["id"], False, "a new driver")]
        assert (await api.send("POST", "/v1/apps/nobody/restart", {}, 404))["code"] == "app.not_found"
        assert (await api.send("POST", "/v1/apps/digits/restart", {"new": True}, 422))["code"] == "api.body.invalid"
        held = await api.send("POST", "/v1/apps", document("held", hold=True))
        refused = await api.send("POST", f"/v1/apps/{held['id']}/restart", {}, 409)
        assert refused["code"] == "restart.waits"
