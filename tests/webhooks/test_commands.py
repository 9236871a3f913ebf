"""`dorm webhooks` next to `dorm up`: the cluster in one terminal delivers the webhooks added in the other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.e2e.commands import done, dorm, refused
from tests.e2e.local_up import leaving_nothing, talker, up, write_spec
from tests.webhooks.receiver import Receiver

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow]


async def test_a_cluster_on_one_machine_delivers(tmp_path: Path) -> None:
    async with leaving_nothing(tmp_path) as folder, Receiver() as receiver:
        data = str(folder / "data")
        async with up(folder, "--webhooks-allow", "loopback", "--data", data) as cluster:
            home = cluster.home
            said = await cluster.said("metrics")
            url = next(line.split()[1] for line in said.splitlines() if line.split()[:1] == ["metrics"])
            made = json.loads(
                await done(home, "webhooks", "add", "one", receiver.url, "--event", "app.ended", "-o", "json")
            )
            assert json.loads(await done(home, "webhooks", "test", "one", "-o", "json"))["delivered"] is True
            assert json.loads(await done(home, "webhooks", "secret", "one", "-o", "json")) == made
            await done(home, "submit", write_spec(folder, talker("short", 1)), "--wait")
            tested, ended = await receiver.count(2)
            assert ended.verified(made["secret"])["type"] == "io.dorm.app.completed.v1"
            assert tested.event["type"] == "io.dorm.webhook.test_requested.v1"
            turned = json.loads(await done(home, "webhooks", "rotate", "one", "-o", "json"))
            assert turned["secret"] != made["secret"]
            (row,) = json.loads(await done(home, "webhooks", "list", "-o", "json"))
            assert (row["name"], row["state"], row["events"], row["pending"]) == ("one", "active", ["app.ended"], 0)
            assert "one" in await done(home, "webhooks", "list")
            await done(home, "webhooks", "enable", "one", "--skip")
            await done(home, "webhooks", "remove", "one")
            assert json.loads(await done(home, "webhooks", "list", "-o", "json")) == []
            assert "one" in await refused(home, "webhooks", "test", "one", code=1)
            assert "app.exploded" in await refused(
                home, "webhooks", "add", "x", "https://a.example", "--event", "app.exploded", code=1
            )
            secret = "https://me:pass@a.example"
            code, out, err = await dorm(home, "webhooks", "add", "x", secret)
            assert (code, out) == (1, "")
            assert "pass@" not in err
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                assert 'dorm_apps_ended_total{outcome="completed"} 1.0' in await answer.text()
            events = await done(home, "events", "-o", "json")
            assert made["secret"] not in events
            assert (folder / "data" / "webhooks.key").read_text().strip() not in events
