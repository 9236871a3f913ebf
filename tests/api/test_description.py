"""The server behaves as its description (OpenAPI) says: schemathesis, with all its checks, finds nothing."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from dorm.api.resources.table import ROUTES
from dorm.api.responses import problem_of
from dorm.api.routes import handler_of
from tests.api.served import Api, connected, filled, led, served
from tests.core.records import document
from tests.replay.busy import busy_log
from tests.tries import LONG, tries

if TYPE_CHECKING:
    from aiohttp import web

    from dorm.api.routes import Route
    from dorm.api.services import Services, Tenants
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats

_PHASES = "examples,coverage,fuzzing,stateful" if LONG else "examples,fuzzing,stateful"
_ELSEWHERE = r"/stream$|/streams|/changes$|/logs$|/checkpoints$|/files?$"
"""They do not end, or ask agents: `test_streams`, `test_hostile` and `test_checkpoints` are about them."""


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[int]]:
    """The statuses that each operation of the server has answered."""
    found: dict[str, Counter[int]] = {route.operation: Counter() for route in ROUTES}

    def counting(route: Route, services: Services, tenants: Tenants) -> Any:
        handle = handler_of(route, services, tenants)

        async def counted(request: web.Request) -> web.StreamResponse:
            try:
                response = await handle(request)
            except Exception as error:
                found.setdefault(route.operation, Counter())[problem_of(error).status] += 1
                raise
            found.setdefault(route.operation, Counter())[response.status] += 1
            return response

        return counted

    monkeypatch.setattr("dorm.api.serving.handler_of", counting)
    return found


async def configuration(api: Api, folder: Path) -> Path:
    """Return the file that lets most requests name what is there: a name made up leads to nothing but 404."""
    apps = [app["id"] for app in (await api.get("/v1/apps?ended=true"))["items"]]
    nodes = [node["name"] for node in (await api.get("/v1/nodes"))["items"]]
    positions = [one["position"] for one in (await api.get("/v1/decisions"))["items"]]
    lines = [(Path(__file__).with_name("schemathesis.toml")).read_text()]
    sweeps = [sweep["name"] for sweep in (await api.get("/v1/sweeps?ended=true"))["items"]]
    for name, values in (("app", apps), ("node", nodes), ("position", positions), ("sweep", sweeps)):
        assert values
        lines.append(f"[dictionaries.{name}]\nvalues = {json.dumps(values)}")
    lines.append("[parameters]")
    lines += [
        f'"path.{name}" = {{ dictionary = "{name}", probability = 0.7 }}'
        for name in ("app", "node", "position", "sweep")
    ]
    file = folder / "schemathesis.toml"
    await asyncio.to_thread(file.write_text, "\n".join(lines))
    return file


async def test_every_route_is_described(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, served(connection) as api:
        found = await api.get("/v1/openapi.json")
        there = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
        assert there == {(route.method, route.path) for route in ROUTES}
        operations = [one["operationId"] for methods in found["paths"].values() for one in methods.values()]
        assert len(set(operations)) == len(operations)
        links = [
            link["operationId"]
            for methods in found["paths"].values()
            for one in methods.values()
            for response in one["responses"].values()
            for link in response.get("links", {}).values()
        ]
        assert links
        assert set(links) <= set(operations)
        for name, schema in found["components"]["schemas"].items():
            jsonschema.Draft202012Validator.check_schema(schema)
            assert name
        assert (await api.get("/v1/schema/app"))["title"] == "Dorm app spec"


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_the_server_behaves_as_described(
    nats_server: NatsServer, tmp_path: Path, answered: dict[str, Counter[int]]
) -> None:
    async with connected(nats_server.url) as connection:
        await filled(connection, busy_log(60, apps=4, nodes=2))
        async with led(connection, "a", "b"), served(connection) as api:
            await api.send("POST", "/v1/apps", document("described"))
            await api.send("POST", "/v1/sweeps", {**document("swept"), "array": 2})
            process = await asyncio.create_subprocess_exec(
                str(Path(sys.executable).with_name("st")),
                "--config-file", str(await configuration(api, tmp_path)),
                "run", f"{api.server.url}/v1/openapi.json",
                "--max-examples", str(tries(3, 100)), "--phases", _PHASES, *(() if LONG else ("--seed", "1")),
                "--exclude-path-regex", _ELSEWHERE, "--request-timeout", "30", "--no-color",
                cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            out, _ = await process.communicate()
            assert process.returncode == 0, out.decode(errors="replace")[-20_000:]
            assert (await api.get("/v1/health"))["status"] == "ok"
    tried = {route.operation for route in ROUTES if not re.search(_ELSEWHERE, route.path)}
    assert {operation for operation in tried if not answered[operation]} == set()
    assert not [operation for operation in answered if answered[operation][500]]
    tried -= {"sign_in", "session_code"}  # An open cluster knows no tokens: tests/api/test_identity.py does both.
    done = {one for one in tried if any(status < 300 for status in answered[one])}
    # With few examples, chance decides which of them have also done what they are for.
    assert done == tried if LONG else len(done) > len(tried) * 2 / 3, sorted(tried - done)
