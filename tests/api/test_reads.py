"""Reads: every moment agrees with `dorm state --at`, lists go by sequence, nothing grows with history."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dorm.core.state import digest
from events.cloudevents import rfc3339
from events.kinds import AppSubmitted
from replay.moments import AtSequence
from replay.travel import state_at
from tests.api.served import connected, filled, led, say, served
from tests.core.records import document
from tests.replay.busy import busy_log
from tests.tries import tries

if TYPE_CHECKING:
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats

RECORDS = busy_log(600, apps=10, nodes=4)


async def test_any_moment_is_the_state_of_the_log(nats_server: NatsServer) -> None:
    chance = Random(1)
    async with connected(nats_server.url) as connection:
        await filled(connection, RECORDS)
        async with served(connection) as api:
            for _ in range(tries(3, 300)):
                seq = chance.randint(0, len(RECORDS))
                expected = await state_at(connection.log, AtSequence(seq))
                for at in (str(seq), f"{seq}.0", *([rfc3339(expected.time)] if seq else [])):
                    found = await api.get(f"/v1/state?at={at}")
                    again = await state_at(connection.log, AtSequence(int(found["position"])))
                    assert found["digest"] == digest(again)
                    assert found["position"] == str(seq) or at == rfc3339(expected.time)
                view = await api.get(f"/v1/view?at={seq}")
                assert view["position"] == str(seq)
                assert [app["id"] for app in view["apps"] if app["phase"] in ("running", "waiting")] == [
                    app.id for app in expected.live_apps() if app.phase in ("running", "waiting")
                ]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/state?at=9999", 404, "moment.after_end"),
        ("/v1/state?at=2999-01-01", 404, "moment.after_end"),
        ("/v1/state?at=2024-13-01", 422, "moment.malformed"),
        ("/v1/state?at=never", 400, "api.parameter.malformed"),
        ("/v1/view?min_seq=9999", 404, "moment.after_end"),
        ("/v1/view?at=3&min_seq=5", 422, "moment.before_min_seq"),
        ("/v1/apps/nobody", 404, "app.not_found"),
        ("/v1/apps/nobody/story", 404, "app.not_found"),
        ("/v1/nodes/nobody/story", 404, "node.not_found"),
        ("/v1/apps/nobody/explain", 404, "app.not_found"),
        ("/v1/apps/nobody/logs", 404, "app.not_found"),
        ("/v1/nodes/none", 404, "node.not_found"),
        ("/v1/events?kind=Strange", 422, "tail.kind.unknown"),
        ("/v1/events?after=1&before=2", 422, "api.parameter.conflict"),
        ("/v1/events?limit=0", 400, "api.parameter.malformed"),
        ("/v1/events?limit=1&limit=2", 400, "api.parameter.malformed"),
        ("/v1/events?colour=red", 400, "api.parameter.unknown"),
        ("/v1/apps?min_seq=null", 400, "api.parameter.malformed"),
        ("/v1/diff", 400, "api.parameter.missing"),
        ("/v1/diff?from=1&only=nobody", 404, "name.not_found"),
        ("/v1/decisions/1", 404, "decision.not_found"),
        ("/v1/decisions/one", 400, "position.malformed"),
        ("/v1/nothing", 404, "api.path.unknown"),
        ("/assets/nothing.js", 404, "api.path.unknown"),
    ],
)
async def test_missing_things_are_problems(nats_server: NatsServer, path: str, status: int, code: str) -> None:
    async with connected(nats_server.url, "api-problems") as connection, served(connection) as api:
        if await connection.log.end() == 0:
            await filled(connection, RECORDS[:20])
            await api.reach(20)
        assert (await api.get(path, status))["code"] == code


async def pages(api: Any, path: str, way: str, start: str = "") -> list[list[dict[str, Any]]]:
    found, place = [], start
    while True:
        page = await api.get(path + place)
        found.append(page["items"])
        following = page["next" if way == "after" else "previous"]
        if following is None:
            return found
        place = f"&{way}={following}"


async def test_lists_go_through_the_log_in_pages_both_ways(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection:
        await filled(connection, RECORDS[:600])
        async with served(connection) as api:
            for query in ("limit=70", "limit=9&kind=Resized", "limit=20&node=gpu-02"):
                forward = await pages(api, f"/v1/events?{query}", "after", "&after=0")
                there = [one["position"] for page in forward for one in page]
                back = await pages(api, f"/v1/events?{query}", "before")
                assert [one["position"] for page in reversed(back) for one in page] == there
                assert len(there) == len(set(there)) > 0
                assert max(map(len, forward)) <= 70
            apps = await pages(api, "/v1/apps?limit=7&ended=true", "after")
            assert [int(one["position"]) for page in apps for one in page] == sorted(
                app.seq for app in (await state_at(connection.log)).apps.values()
            )
            nodes = await pages(api, "/v1/nodes?limit=3", "after")
            assert [one["name"] for page in nodes for one in page] == sorted((await state_at(connection.log)).nodes)
            decisions = await pages(api, "/v1/decisions?limit=5", "before")
            first = decisions[-1][0]["position"]
            assert "items" in await api.get("/v1/decisions", headers={"Accept": "text/event-stream"})
            assert (await api.get(f"/v1/decisions/{first}"))["body"]["kind"] == "Resized"


async def test_the_past_and_an_answers_size_do_not_depend_on_later_records(nats_server: NatsServer) -> None:
    paths = (
        "/v1/view?at=150",
        "/v1/state?at=150",
        "/v1/apps?at=150",
        "/v1/diff?from=100&to=150",
        "/v1/events?before=150",
    )
    async with connected(nats_server.url) as connection:
        await filled(connection, RECORDS[:200])
        async with served(connection) as api:
            before = [await api.get(path) for path in paths]
            sizes = {path: len(str(await api.get(path))) for path in ("/v1/events", "/v1/timeline?width=50")}
            await filled(connection, RECORDS[200:])
            await api.reach(len(RECORDS))
            after = [await api.get(path) for path in paths]
            for document in (*before, *after):
                document.pop("next", None)
                document.pop("position", None)
            assert before == after
            for path, size in sizes.items():
                assert len(str(await api.get(path))) < 4 * size


async def test_many_equal_requests_are_answered_once(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection:
        await filled(connection, RECORDS[:100])
        async with served(connection) as api:
            answers = await asyncio.gather(*(api.get("/v1/apps?limit=5&user=nobody") for _ in range(50)))
            assert all(one == answers[0] for one in answers)
            assert not api.server.services.computing


async def test_unreadable_records_are_shown_and_do_no_harm(nats_server: NatsServer) -> None:
    """A log from a newer version, and nonsense."""
    async with connected(nats_server.url) as connection, led(connection, "a"):
        log, cluster = connection.log, connection.cluster
        newer = b'{"kind": "AppSubmitted", "v": 99, "spec": {"new": 1}}'
        await log.append(f"dorm.{cluster}.AppSubmitted.ann", newer)
        await log.append(f"dorm.{cluster}.AppInvented.ann", b'{"kind": "AppInvented", "what": [1, 2]}')
        await log.append(f"dorm.{cluster}.AppUpdated.ann", b"\xc1\xff nonsense")
        last = await say(log, cluster, AppSubmitted(spec=document("app")), "ann")
        async with served(connection) as api:
            await api.reach(last)
            kinds = [one["kind"] for one in (await api.get("/v1/events"))["items"]]
            assert kinds.count("Unknown") == 2
            assert kinds.count("Unreadable") == 1
            assert (await api.get("/v1/state"))["counters"]["unknown"] >= 1


async def test_metrics_agree_with_the_state(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection:
        await filled(connection, RECORDS)
        async with served(connection) as api:
            state = await state_at(connection.log, AtSequence(len(RECORDS)))
            async with api.session.get("/metrics") as answer:
                assert answer.status == 200
                assert answer.content_type == "text/plain"
                text = await answer.text()
            found = {
                (one.name, *one.labels.values()): one.value
                for family in text_string_to_metric_families(text)
                for one in family.samples
            }
            live = [app.phase for app in state.live_apps()]
            for phase in set(live):
                assert found["dorm_apps", phase] == live.count(phase)
            assert found["dorm_log_lag_records",] == 0
            assert found["process_resident_memory_bytes",] > 0
