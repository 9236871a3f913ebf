"""Requests through the API are those of `dorm.client`: stored once, answered with their position, seen by the next read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from events.codec import decode
from events.kinds import (
    AppCancelRequested,
    AppSubmitted,
    AppUpdated,
    GenerationReleased,
    NodeDrainRequested,
    PolicyChanged,
    Round,
)
from tests.api.served import connected, led, served
from tests.core.records import document

if TYPE_CHECKING:
    from events.log.interface import ReadableLog
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats


async def said(log: ReadableLog, kind: type) -> list[Any]:
    return [event async for batch in log.read() for event in map(decode, batch) if isinstance(event, kind)]


async def test_requests_are_on_the_log_and_in_the_next_read(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, led(connection, "a", "b"), served(connection) as api:
        log = connection.log
        submitted = await api.send(
            "POST", "/v1/apps", document("digits"), headers={"Idempotency-Key": "one", "Dorm-User": "ann"}
        )
        assert (submitted["answered"], submitted["user"], submitted["idempotency_key"]) == (True, "ann", "one")
        path = f"/v1/apps/{submitted['id']}"
        app = await api.get(f"{path}?min_seq={submitted['position']}")
        assert (app["name"], app["user"], app["position"]) == ("digits", "ann", submitted["position"])
        changed = await api.send("PATCH", path, {"weight": 2.5, "n_max": 3})
        assert (changed["weight"], changed["n_max"]) == (2.5, 3)
        app = await api.get(f"{path}?min_seq={changed['position']}")
        assert (app["weight"], app["n_max"]) == (2.5, 3)
        drained = await api.send("POST", "/v1/nodes/a/drain", {"reason": "disk"})
        assert (await api.get(f"/v1/nodes/a?min_seq={drained['position']}"))["condition"] == "draining"
        await api.send("POST", "/v1/nodes/a/undrain")
        settings = await api.send("PUT", "/v1/policy", {"set_params": {"theta1": 0.3}, "idle_s": 60}, 200)
        assert not {"weights", "tenant_apps", "tenant_retention_s"} & settings["settings"].keys(), "nobody set them"
        found = await api.get(f"/v1/policy?min_seq={settings['position']}")
        assert {one["name"]: one["value"] for one in found["parameters"]}["theta1"] == 0.3
        plan = await api.send("POST", "/v1/plan", {"cancel": "digits"}, 200)
        assert [(one["name"], one["end"]) for one in plan["changes"]] == [("digits", "cancelled")]
        paused = await api.send("POST", "/v1/scheduling/pause", {"reason": "a switch"})
        found = await api.get(f"/v1/scheduling?min_seq={paused['position']}")
        assert (found["paused"], found["reason"]) == (True, "a switch")
        resumed = await api.send("POST", "/v1/scheduling/resume")
        assert (await api.get(f"/v1/scheduling?min_seq={resumed['position']}"))["paused"] is False
        held = await api.send("POST", f"{path}/hold", {"reason": "wrong data"})
        app = await api.get(f"{path}?min_seq={held['position']}")
        assert (app["code"], app["note"], app["hold"]["reason"]) == ("hold", "held by tester: wrong data", "wrong data")
        assert (await api.send("POST", f"{path}/hold", {}, 409))["code"] == "app.held"
        let_go = await api.send("POST", f"{path}/release", {})
        assert (await api.get(f"{path}?min_seq={let_go['position']}"))["hold"] is None
        assert (await api.send("POST", f"{path}/release", {}, 409))["code"] == "app.not_held"
        cancelled = await api.send("POST", f"{path}/cancel", {"reason": "enough"})
        noted = await api.send("POST", f"{path}/notes", {"text": " the data were wrong\n"})
        (note,) = (await api.get(f"{path}?min_seq={noted['position']}"))["notes"]
        assert (note["position"], note["by"], note["text"]) == (noted["position"], "tester", "the data were wrong")
        for text, status in ((" ", 409), ("x" * 501, 422)):
            await api.send("POST", f"{path}/notes", {"text": text}, status)
        assert cancelled["id"] == submitted["id"]
        assert [one.by for one in await said(log, AppSubmitted)] == ["ann"]
        assert [(one.weight, one.n_max) for one in await said(log, AppUpdated)] == [(2.5, 3)]
        assert [one.drain for one in await said(log, NodeDrainRequested)] == [True, False]
        assert [one.reason for one in await said(log, AppCancelRequested)] == ["enough"]
        assert len(await said(log, PolicyChanged)) == 2


async def test_a_repeat_with_its_key_is_the_same_app(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, led(connection, "a"), served(connection) as api:
        key = {"Idempotency-Key": "a-key"}
        many = await asyncio.gather(*(api.send("POST", "/v1/apps", document("once"), headers=key) for _ in range(8)))
        assert all(one == many[0] for one in many)
        assert len((await api.get("/v1/apps"))["items"]) == 1
        assert len(await said(connection.log, AppSubmitted)) == 1
        other = await api.send("POST", "/v1/apps", document("other"), headers=key)
        assert other["id"] != many[0]["id"]  # Another spec is not a repeat, and takes nothing from the first one.
        assert {app["name"] for app in (await api.get("/v1/apps"))["items"]} == {"once", "other"}


async def test_what_no_shell_reads_is_noted_in_the_answer(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, led(connection, "a"), served(connection) as api:
        said = await api.send("POST", "/v1/apps", document("home", command=["train", "$HOME/data", "$DORM_RANK"]))
        assert [note.partition(":")[0] for note in said["notes"]] == ["command[1]"]
        assert (await api.send("POST", "/v1/apps", document("plain")))["notes"] == []


async def test_impossible_requests_are_refused_with_their_code(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, led(connection, "a"), served(connection) as api:
        await api.send("POST", "/v1/apps", document("taken"))
        async with asyncio.timeout(20):  # Nothing more follows from it then.
            while not any(
                isinstance(fact, GenerationReleased) for one in await said(connection.log, Round) for fact in one.events
            ):
                pass
        asked = [
            ("POST", "/v1/apps", document("huge", cpu=400), 409, "spec.demand.too_large"),
            ("POST", "/v1/apps", document("taken"), 409, "spec.name.taken"),
            ("POST", "/v1/apps", {"name": "x"}, 422, "spec.command.missing"),
            ("POST", "/v1/apps", document("x", command=["a", "$DORM_OUT"]), 422, "spec.command.unknown_variable"),
            ("POST", "/v1/apps", {"name": "x", "colour": 1}, 422, "spec.unknown_field"),
            ("PATCH", "/v1/apps/taken", {"n_min": 9}, 409, "spec.n_min.above_n_max"),
            ("PATCH", "/v1/apps/taken", {"weight": -1}, 422, "api.body.invalid"),
            ("PATCH", "/v1/apps/taken", {"wait": 1}, 422, "api.body.invalid"),
            ("PATCH", "/v1/apps/nobody", {"weight": 2}, 404, "app.not_found"),
            ("POST", "/v1/apps/taken/retry", None, 409, "app.not_pausing"),
            ("POST", "/v1/nodes/a/forget", {}, 409, "node.may_run"),
            ("POST", "/v1/nodes/a/trust", {}, 409, "node.not_suspect"),
            ("POST", "/v1/nodes/none/trust", {}, 404, "node.not_found"),
            ("POST", "/v1/scheduling/resume", {}, 409, "scheduling.not_paused"),
            ("POST", "/v1/apps/nobody/cancel", {}, 404, "app.not_found"),
            ("POST", "/v1/nodes/none/drain", {}, 404, "node.not_found"),
            ("PUT", "/v1/policy", {"policy": "none"}, 409, "policy.unknown"),
            ("PUT", "/v1/policy", {"node_grace_s": 1}, 409, "settings.node_grace.too_short"),
            ("POST", "/v1/plan", {"drain": "none"}, 404, "node.not_found"),
            ("POST", "/v1/plan", {"policy": {"theta1": "much"}}, 422, "policy.parameter.wrong_type"),
        ]
        found: list[tuple[str, str]] = []
        for method, path, body, status, _ in asked:
            before = await connection.log.end()
            problem = await api.send(method, path, body, status)
            if status == 422:
                assert await connection.log.end() == before
            found.append((path, problem["code"]))
        problem = await api.send("POST", "/v1/apps", {"name": "x", "colour": 1, "n_max": 0}, 422)
        codes = ["spec.unknown_field", "spec.command.missing", "spec.demand.missing", "spec.n_max.out_of_range"]
        assert [one["code"] for one in problem["errors"]] == codes
        assert (problem["code"], problem["detail"]) == (codes[0], problem["errors"][0]["detail"])
        assert "errors" not in await api.send("POST", "/v1/apps", {"name": "x", "command": ["x"]}, 422)
        assert found == [(path, code) for _, path, _, _, code in asked]


async def test_without_a_master_a_submission_is_stored_and_not_answered(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dorm.api.resources.apps._ANSWER_S", 0.1)
    async with connected(nats_server.url) as connection, served(connection) as api:
        found = await api.send("POST", "/v1/apps", document("patient"))
        assert not found["answered"]
        assert len(await said(connection.log, AppSubmitted)) == 1


async def test_yaml_is_taken_for_a_spec(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, led(connection, "a"), served(connection) as api:
        headers = {"Content-Type": "application/yaml"}
        spec = b"name: yaml\ncommand: [work]\ndemand: {cpu: 500m}\n"
        async with api.session.post("/v1/apps", data=spec, headers=headers) as answer:
            assert answer.status == 202
        typed = b"name: typed\ncommand: [work, 010, no]\ndemand: {cpu: 500m}\nenv: {N: 1e-4}\nlabels: {on: off}\n"
        async with api.session.post("/v1/apps", data=typed, headers=headers) as answer:
            assert answer.status == 202
        sent = (await said(connection.log, AppSubmitted))[-1].spec
        assert (sent["command"], sent["env"], sent["labels"]) == (["work", "010", "no"], {"N": "1e-4"}, {"on": "off"})
        for data, code in (
            (b"apiVersion: v1\nkind: Job", "spec.foreign.kubernetes"),
            (b"n_max: 010", "file.value.ambiguous"),
        ):
            async with api.session.post("/v1/apps", data=data, headers=headers) as answer:
                assert (answer.status, (await answer.json())["code"]) == (422, code)
        async with api.session.post("/v1/apps", data=b"a: [", headers=headers) as answer:
            assert (answer.status, (await answer.json())["code"]) == (422, "file.not_yaml")
        async with api.session.post("/v1/plan", data=b"{}", headers=headers) as answer:
            assert answer.status == 415
