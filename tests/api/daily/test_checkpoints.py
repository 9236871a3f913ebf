"""Checkpoints over HTTP, on a cluster that knows its users: listed by agents, for the app's users alone."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from dorm.remote import AsyncClient, NotFound, Problem
from tests.api.served import PATIENCE_S
from tests.e2e.commands import done
from tests.e2e.local_up import leaving_nothing, up

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.soak]

TRUSTING = ("--api", "0", "--trust-apps")
SAVES = """\
import json, os, pathlib, time
folder = pathlib.Path(os.environ["DORM_CHECKPOINT_DIR"])
with open(os.environ["DORM_PROGRESS"], "a") as progress:
    (folder / "step-10.pt").write_text("x" * 10)
    print(json.dumps({"checkpoint": 10}), file=progress, flush=True)
time.sleep(1000)
"""


async def test_only_own_checkpoints_are_listed_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with leaving_nothing(tmp_path) as folder, up(folder, *TRUSTING, agents=1, api=True, known=True) as cluster:
        tokens = {}
        for name, role in (("alice", "user"), ("mallory", "user"), ("rita", "reader")):
            await done(cluster.home, "user", "add", name, "--role", role, "--to", str(tmp_path / f"{name}.json"))
            tokens[name] = json.loads(await done(cluster.home, "token", "add", "--for", name, "-o", "json"))["secret"]

        def client(name: str) -> AsyncClient:
            monkeypatch.setenv("DORM_TOKEN", tokens[name])
            return AsyncClient(cluster.running.dashboard)

        spec: dict[str, Any] = {"name": "saves", "command": [sys.executable, "-c", SAVES], "demand": {"cpu": "500m"}}
        async with asyncio.timeout(60.0):
            app = await client("alice").submit(spec)
            found = await client("alice").checkpoints(app.id)
            while found.restart_step != 10:
                await asyncio.sleep(0.2)
                found = await client("alice").checkpoints(app.id)
        shown = [(one["path"], one["size"], one["step"], one["used"]) for one in found.checkpoints]
        assert shown == [("step-10.pt", 10, 10, True)]
        with pytest.raises(NotFound):
            await client("mallory").checkpoints(app.id)
        with pytest.raises(Problem) as reads:
            await client("rita").checkpoints(app.id)
        assert (reads.value.status, reads.value.code) == (403, "identity.role.too_low")
        path = f"{cluster.running.dashboard.rstrip('/')}/v1/apps/{app.id}"
        async with aiohttp.ClientSession() as session:
            for name, status in (("alice", 200), ("rita", 403), ("mallory", 404)):
                headers = {"Authorization": f"Bearer {tokens[name]}"}
                async with session.get(f"{path}/files?area=checkpoints", headers=headers) as listed:
                    assert listed.status == status
                    if status == 200:
                        assert [(one["path"], one["size"]) for one in (await listed.json())["items"]] == [
                            ("step-10.pt", 10)
                        ]
                async with session.get(f"{path}/file?area=checkpoints&path=step-10.pt", headers=headers) as file:
                    assert file.status == status
                    assert status != 200 or await file.read() == b"x" * 10
        with pytest.raises(NotFound):
            await client("mallory").restart(app.id)

        restarted = await client("alice").restart(app.id, reason="a look")
        assert (restarted.was, restarted.checkpoint) == ("running", 10)
        async with asyncio.timeout(PATIENCE_S):
            while (await client("alice").app(app.id)).document["generation"] < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
