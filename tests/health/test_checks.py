"""The combined result of a process's checks, also over HTTP."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from agents.node_status import Vitals
from dorm.health import checks as c
from dorm.health.process_checks import LONGEST_SILENCE_S, agent_checks
from dorm.metrics.address import Address
from dorm.metrics.server import MetricsServer

GOOD = c.Check("log", True, "the log answers")
BAD = c.Check("role", False, "it does not know who leads")


async def good() -> list[c.Check]:
    return [GOOD]


async def bad() -> list[c.Check]:
    return [BAD, c.Check("lease", False, "the lease is over")]


async def broken() -> list[c.Check]:
    raise RuntimeError("no")


def health(*sources: c.Source) -> c.Health:
    made = c.Health("dorm 1", "it starts")
    made.watch(*sources)
    return made


async def test_a_process_is_ready_if_every_check_holds() -> None:
    assert await health().report() == c.Report(False, "dorm 1", [c.Check("start", False, "it starts")])
    found = await health(good, good).report()
    assert (found.ready, found.status) == (True, "the log answers")
    found = await health(good, bad).report()
    assert (found.ready, found.status) == (False, "it does not know who leads; the lease is over")
    assert found.checks[0] == GOOD


async def test_a_check_that_fails_or_hangs_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c, "_SOURCE_S", 0.01)

    async def hangs() -> list[c.Check]:
        await asyncio.Event().wait()
        return [GOOD]

    found = await health(good, broken, hangs).report()
    assert [check.ok for check in found.checks] == [True, False, False]
    assert "RuntimeError('no')" in found.status


async def test_checks_are_made_once_at_a_time() -> None:
    made, go = 0, asyncio.Event()

    async def slow() -> list[c.Check]:
        nonlocal made
        made += 1
        await go.wait()
        return [GOOD]

    one = health(slow)
    both = asyncio.gather(one.report(), one.report())
    await asyncio.sleep(0)
    go.set()
    assert [found.ready for found in await both] == [True, True]
    assert made == 1


async def test_pages() -> None:
    one = health(good)
    async with MetricsServer(Address("127.0.0.1", 0), [], health=one) as server, aiohttp.ClientSession() as session:

        async def page(path: str) -> tuple[int, object]:
            async with session.get(f"http://{server.address}{path}") as answer:
                return answer.status, await answer.json()

        assert await page("/healthz") == (200, {"alive": True, "version": "dorm 1"})
        said = {"name": "log", "ok": True, "text": "the log answers"}
        assert await page("/readyz") == (200, {"ready": True, "version": "dorm 1", "checks": [said]})
        one.watch(bad)
        status, body = await page("/readyz")
        assert status == 503
        assert isinstance(body, dict)
        assert [check["ok"] for check in body["checks"]] == [True, False, False]
        assert (await page("/healthz"))[0] == 200


@pytest.mark.parametrize(
    ("vitals", "wrong"),
    [
        (Vitals("n1", True, 7, {"running": 2}, 0, 1.0, 200.0), []),
        (Vitals("n1", False, 0, {}, 0, 0.0, 0.0), ["joined"]),
        (Vitals("n1", True, 7, {}, 0, LONGEST_SILENCE_S + 1, 200.0), ["engine"]),
        (Vitals("n1", True, 7, {}, 0, 1.0, -3.0), ["lease"]),
    ],
)
def test_an_agent(vitals: Vitals, wrong: list[str]) -> None:
    assert [check.name for check in agent_checks(vitals) if not check.ok] == wrong
    assert [check.name for check in agent_checks(vitals, "n1/")] == ["n1/engine", "n1/lease", "n1/joined"]
