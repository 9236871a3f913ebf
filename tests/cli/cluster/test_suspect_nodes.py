"""`dorm nodes`, `dorm describe` and `dorm nodes trust` about a suspect node, on a real server without a master."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from events.codec import decode
from events.kinds import NodeTrustRequested
from tests.api.served import connected, filled
from tests.core import suspect_node
from tests.e2e.commands import done, refused

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.slow]


async def test_an_operator_sees_a_suspect_node_and_trusts_it(tmp_path: Path, nats_server: NatsServer) -> None:
    name = f"suspect-{tmp_path.name[-20:]}"
    common = ["--url", nats_server.url, "--cluster", name]
    async with connected(nats_server.url, name) as connection:
        await filled(connection, suspect_node.suspect().records)
        listed = await done(tmp_path, "nodes", *common)
        assert next(line.split()[1] for line in listed.splitlines() if line.startswith("bad")) == "suspect"
        assert "three failed (three: no such file)" in listed
        assert "`dorm nodes trust bad` ends this" in listed
        of_node = await done(tmp_path, "describe", "bad", *common)
        assert "apps that failed here lately" in of_node
        document = json.loads(await done(tmp_path, "describe", "bad", "-o", "json", *common))
        assert [one["name"] for one in document["failed"]] == ["one", "three", "two"]
        of_app = await done(tmp_path, "describe", "one", *common)
        named = [line.split(maxsplit=1)[0] for line in of_app.splitlines() if "no such file" in line]
        assert named == ["note", "failed", "avoids", "0"]
        reason = "[node.not_suspect]"
        assert reason in await refused(tmp_path, "nodes", "trust", "good", *common, code=1)
        assert "[node.not_found]" in await refused(tmp_path, "nodes", "trust", "nowhere", *common, code=1)
        said = await done(tmp_path, "nodes", "trust", "bad", "--reason", "a new disk", *common)
        assert said == "bad is trusted, and used again\n"
        assert reason in await refused(tmp_path, "nodes", "trust", "bad", *common, code=1)
        requests = [
            event
            async for batch in connection.log.read()
            for event in map(decode, batch)
            if isinstance(event, NodeTrustRequested)
        ]
        assert [(one.node, one.reason) for one in requests] == [("bad", "a new disk")]
