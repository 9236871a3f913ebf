"""Whether the cluster is well, over HTTP: as `dorm doctor` judges, now and at moments of the past."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp
import msgspec
import pytest

from dorm.api.options import Options
from dorm.api.page import Page, policy
from dorm.cli.errors import WrongUsage
from dorm.cli.serve import _site
from dorm.doctor.cluster_findings import judge_delays, judge_nodes, judge_settings
from dorm.doctor.findings import gravest_first
from replay.moments import AtSequence
from replay.travel import state_at
from tests.api.served import connected, filled, served
from tests.errors import raises
from tests.replay.busy import busy_log

if TYPE_CHECKING:
    from tests.lab.machines.nats_server import NatsServer


@pytest.mark.nats
async def test_findings_are_those_of_the_doctor_at_any_moment(nats_server: NatsServer) -> None:
    records = busy_log(500, apps=8, nodes=4)
    async with connected(nats_server.url) as connection:
        await filled(connection, records)
        async with served(connection) as api:
            seen = set()
            for seq in (0, 20, 137, 260, 381):
                state = await state_at(connection.log, AtSequence(seq))
                every = [*judge_nodes(state, None), *judge_delays(state), *judge_settings(state)]
                expected = [one for one in gravest_first(every) if one.level != "ok" and one.about != "agents"]
                found = await api.get(f"/v1/findings?at={seq}")
                assert found["items"] == msgspec.to_builtins(expected)
                assert (found["position"], found["all_items"]) == (str(seq), len(expected))
                assert found["level"] == (expected[0].level if expected else "ok")
                seen |= {one["check"] for one in found["items"]}
            assert "nodes" in seen

            # This cluster's master never had a lease, and its log is on a server that answers.
            now = await api.get("/v1/findings")
            assert now["level"] in ("wrong", "unknown")
            assert [one["level"] for one in now["items"] if one["check"] == "masters"] == ["unknown"]
            assert not [one for one in now["items"] if one["check"] in ("servers", "disk")]


async def test_only_named_sites_may_frame_the_dashboard() -> None:
    page = Page.load()
    assert "frame-ancestors 'none'" in policy("")
    assert "frame-ancestors https://wiki.example https://*.lab.example:8443" in policy(
        "", [_site("https://wiki.example"), _site("https://*.lab.example:8443")]
    )
    for text in ("wiki", "https://a b", "https://x; script-src *", "'self'", "*", "https://", "javascript://x"):
        with raises(WrongUsage, "api.embed.malformed"):
            _site(text)
    assert page._policies["index.html"].endswith("frame-ancestors 'none'")


@pytest.mark.nats
async def test_the_sign_in_is_never_framed(nats_server: NatsServer) -> None:
    from dorm.api.serving import serving

    async with connected(nats_server.url) as connection:
        options = Options(port=0, embed_in=("https://wiki.example",))
        async with serving(connection, options) as server, aiohttp.ClientSession(base_url=server.url) as session:
            async with session.get("/") as answer:
                assert answer.headers["Content-Security-Policy"].endswith("frame-ancestors https://wiki.example")
                assert "X-Frame-Options" not in answer.headers
            async with session.get("/sign-in") as answer:
                assert answer.headers["Content-Security-Policy"].endswith("frame-ancestors 'none'")
                assert answer.headers["X-Frame-Options"] == "DENY"
