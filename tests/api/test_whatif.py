"""A fork over HTTP equals that of `dorm whatif`, is drawn next to the real course, and ends with its request."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from dorm.api.clusters import ArchivedCluster
from dorm.api.options import Limits, Options
from dorm.api.serving import serving
from dorm.core.query.assumed import Assumed
from events.quantities import SECOND
from replay.moments import AtSequence
from replay.simulator.forks import fork as forks
from replay.simulator.forks.whatif import whatif
from replay.simulator.simulation import Simulation
from tests.api.served import PATIENCE_S, Api
from tests.replay.made_log import log_of
from tests.simulator.histories import busy, seq_at, written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from events.log.records import Record

STATIC = {"policy": {"policy": "static", "count": 2}}


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return written(Simulation(busy()))


@contextlib.asynccontextmanager
async def served(records: list[Record], **limits: Any) -> AsyncIterator[Api]:
    """An archive, served: a fork only reads."""
    options = Options(port=0, archive="busy", limits=Limits(**limits))
    async with (
        serving(ArchivedCluster(log_of(records)), options) as server,
        aiohttp.ClientSession(base_url=server.url) as session,
    ):
        following = asyncio.create_task(server.run())
        try:
            await server.services.follower.reach(len(records), PATIENCE_S)
            yield Api(server, session)
        finally:
            following.cancel()
            await asyncio.wait({following})


async def test_a_fork_is_drawn_next_to_the_real_course(records: list[Record]) -> None:
    seq = seq_at(records, 231.0)
    expected = await whatif(log_of(records), AtSequence(seq), Assumed(settings={"policy": "static", "count": 2}))
    async with served(records) as api:
        found = await api.send("POST", f"/v1/whatif?at={seq}", {**STATIC, "width": 600}, 200)
        assert (found["position"], found["assumed"]) == (str(seq), expected.assumed)
        assert expected.changed is not None
        assert found["changed"]["mean_completion_s"] == pytest.approx(expected.changed.mean_completion_s)
        assert found["really"]["completed"] == 7
        assert found["trust"]["backtest"]["hindsight"]
        assert not found["trust"]["far_off"]
        assert "on average" in found["verdict"]
        assert found["apps"][0]["changed"] != found["apps"][0]["unchanged"]

        # The unchanged fork draws what happened; the changed one has two containers of each app.
        really = await api.get(f"/v1/timeline?from={found['at']}&width=600")
        drawn, changed = found["unchanged_picture"], found["changed_picture"]
        assert drawn["from"] == changed["from"] == found["at"]
        assert drawn["to"] == changed["to"] == really["to"] == found["to"]
        assert [one["id"] for one in drawn["apps"]] == [one["id"] for one in really["apps"]]
        for one, other in zip(drawn["apps"], really["apps"], strict=True):
            assert one["ended"] == other["ended"]
            assert max(span[2] for span in one["spans"]) == max(span[2] for span in other["spans"])
        late = [one for one in changed["apps"] if one["name"] in ("sixth", "seventh")]
        assert [max(span[2] for span in one["spans"]) for one in late] == [2, 2]

        # Amounts as people write them are those of the log.
        for capacity in ({"cpu": "1.5", "memory": "4GiB"}, {"cpu": 1500, "memory": 4 * 2**30}):
            planned = await api.send("POST", f"/v1/plan?at={seq}", {"nodes": [{"count": 2, "capacity": capacity}]}, 200)
            assert planned["assumed"] == ["2 more nodes of 1.5 cores, 4 GiB (new-1 to new-2)"]
        for body in ({"cpu": "eight"}, {"cpu": "1" * 40}):
            wrong = await api.send("POST", f"/v1/plan?at={seq}", {"nodes": [{"capacity": body}]}, 422)
            assert wrong["code"].startswith("quantity.")
            await api.send("POST", f"/v1/whatif?at={seq}", {"nodes": [{"capacity": body}]}, 422)

        present = await api.send("POST", "/v1/whatif", STATIC, 422)
        assert present["code"] == "whatif.no_apps"
        wrong = await api.send("POST", f"/v1/whatif?at={seq}", {"policy": {"policy": "statik"}}, 422)
        assert wrong["code"] == "policy.unknown"
        await api.send("POST", f"/v1/whatif?at={seq}", {"rounds": 3}, 422)


async def test_a_fork_is_bounded_and_ends_with_its_request(
    records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[int] = []
    simulation_of = forks.simulation_of

    def endless(fork: forks.Fork) -> Simulation:
        """A simulation that takes a day, and counts its records."""
        made = simulation_of(fork)
        made.observe(lambda _state, record, _event, _folded: played.append(record.seq))
        return made

    monkeypatch.setattr("replay.page.forked.MOST_TOLD", 10**9)
    monkeypatch.setattr(forks, "LEAST_REPORT_S", 0.001)
    monkeypatch.setattr(forks._Making, "_report_interval_s", lambda *_: 0.001)
    monkeypatch.setattr(forks, "simulation_of", endless)
    at = f"/v1/whatif?at={seq_at(records, 231.0)}"
    async with served(records, long_answer_s=3.0) as api:
        problem = await api.send("POST", at, STATIC, 503)
        assert problem["code"] == "api.too_slow"
        assert "dorm whatif" in problem["detail"]
        await _quiet(played)

        # One that its client gives up makes room for the next.
        for _ in range(2):
            begun = len(played)
            asking = asyncio.create_task(api.session.post(at, json=STATIC).__aenter__())
            await _more(played, begun)
            asking.cancel()
            await asyncio.wait([asking])
        await _quiet(played)
        assert (await api.get("/v1/health"))["status"] == "ok"


async def _more(played: list[int], than: int) -> None:
    """Wait until a simulation runs."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if len(played) > than:
                return
            await asyncio.sleep(0.01)


async def _quiet(played: list[int]) -> None:
    """Wait until no simulation runs."""
    async with asyncio.timeout(PATIENCE_S):
        before = -1
        while len(played) != before:
            before = len(played)
            await asyncio.sleep(0.3)


def test_times_of_the_simulated_log(records: list[Record]) -> None:
    """What the tests above rely on."""
    assert (records[-1].time - records[0].time) / SECOND > 1000
