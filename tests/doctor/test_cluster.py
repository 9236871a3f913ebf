"""Findings about the log, the masters and the agents, from recorded answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from dorm.client.masters import Leader
from dorm.doctor.cluster_findings import (
    Asked,
    judge_masters,
    judge_nodes,
    judge_rotation,
    judge_settings,
    judge_versions,
)
from events import kinds as k
from events.nats.streams import ClockState
from events.requests import AgentStatus, Disk, MasterStatus
from tests.core import suspect_node
from tests.core.records import Bench, joined

if TYPE_CHECKING:
    from dorm.doctor.findings import Finding

GIB = 2**30
NOW = ClockState(0.0, 0.0)
LEADER = Leader("m1", "leading", "m1", 3, 0, 60.0, 0, 2.0)
LEADS = MasterStatus("m1", "dorm 0.6.0", 0, True, 3, 90, 90, 1.5)
FOLLOWS = MasterStatus("m2", "dorm 0.6.0", 0, False, 3, 88, 90, 0.0)
WELL = AgentStatus("a", "dorm 0.6.0", 0, True, 90, 280.0, 300.0, 1.0, 0, "docker")


def bad(findings: list[Finding]) -> list[tuple[str, str, str]]:
    """All that is not well; everything wrong says what to do."""
    assert all(one.todo for one in findings if one.level == "wrong"), findings
    return [(one.level, one.check, one.about) for one in findings if one.level != "ok"]


def asked(*statuses: MasterStatus) -> list[Asked[MasterStatus]]:
    return [Asked(one, NOW) for one in statuses]


def leader(**fields: Any) -> Leader:
    return msgspec.structs.replace(LEADER, **fields)


def agent(**fields: Any) -> dict[str, Asked[AgentStatus]]:
    return {"a": Asked(msgspec.structs.replace(WELL, **fields), NOW)}


@pytest.mark.parametrize(
    ("row", "masters", "expected"),
    [
        (LEADER, asked(LEADS, FOLLOWS), []),
        (LEADER, asked(LEADS), [("note", "masters", "followers")]),
        (LEADER, None, [("unknown", "masters", "followers")]),
        (leader(condition="silent", leader=""), asked(FOLLOWS), [("wrong", "masters", "lease")]),
        (leader(condition="gone", leader="", last=""), [], [("wrong", "masters", "lease")]),
        # A new cluster without any master has no lease, and the last one of a release before leases is not known to live.
        (leader(condition="unknown", leader="", last="", epoch=0), [], [("wrong", "masters", "lease")]),
        # After a restore, masters that had seen more refuse to lead.
        (leader(condition="unknown", leader="m0", last="m0"), asked(FOLLOWS), [("wrong", "masters", "lease")]),
        (leader(condition="unknown", leader="m0", last="m0"), [], [("wrong", "masters", "lease")]),
        (
            leader(condition="unknown", leader="m1", last="m1"), asked(LEADS, FOLLOWS),
            [("unknown", "masters", "lease")],
        ),
        (
            leader(condition="unknown", leader="m0", last="m0"), None,
            [("unknown", "masters", "m0"), ("unknown", "masters", "followers")],
        ),
        (LEADER, asked(LEADS, msgspec.structs.replace(FOLLOWS, end=99_999)), [("wrong", "lag", "m2")]),
        (LEADER, asked(LEADS, msgspec.structs.replace(FOLLOWS, end=None)), [("wrong", "lag", "m2")]),
        (
            LEADER, asked(LEADS, msgspec.structs.replace(FOLLOWS, disks=[Disk("/var", GIB, 100 * GIB)])),
            [("wrong", "disk", "m2")],
        ),
    ],
)  # fmt: skip
def test_masters(row: Leader, masters: list[Asked[MasterStatus]] | None, expected: list[tuple[str, str, str]]) -> None:
    assert bad(list(judge_masters(row, masters))) == expected


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([], []),
        (["archive.not_written"], ["archive.not_written"]),
        (["archive.not_written", "archive.store.failed"], ["archive.store.failed"]),
        (["rotation.nothing_due"], []),  # The request came too early.
        (["archive.not_written", "rotation.nothing_due", "rotation.no_archives"], ["archive.not_written"]),
    ],
)
def test_rotations_that_failed(codes: list[str], expected: list[str]) -> None:
    failures = [k.RotationFailed(id=code, by="m1", code=code, reason=code) for code in codes]
    found = list(judge_rotation(failures))
    assert bad(found) == [("wrong", "rotation", "log")] * len(expected)
    assert all(code in one.text for one, code in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        (agent(), []),
        (agent(lease_left_s=20.0), [("wrong", "lease", "a")]),
        (agent(silence_s=90.0), [("wrong", "engine", "a")]),
        (agent(joined=False), [("wrong", "nodes", "a")]),
        (agent(pending=500), [("wrong", "lag", "a")]),
        (agent(gpus=["GPU-a1 (--gpu 0) is missing"]), [("wrong", "gpu", "a")]),
        (agent(detected="2 of 64 cores: cgroup quota"), []),
        (agent(disks=[Disk("/var", 30 * GIB, 1000 * GIB)]), []),  # Little of a large disk is plenty.
        (agent(disks=[Disk("/var", GIB, 1000 * GIB)]), [("wrong", "disk", "a")]),
        ({}, [("unknown", "nodes", "a")]),
        (None, [("unknown", "nodes", "agents")]),
    ],
)
def test_agents(agents: dict[str, Asked[AgentStatus]] | None, expected: list[tuple[str, str, str]]) -> None:
    assert bad(list(judge_nodes(Bench(a=2).state, agents))) == expected


def test_nodes() -> None:
    bench = Bench(b=2, c=2, d=2)
    bench.add(joined("a", identity="2" * 32), "a")
    bench.add(k.NodeDrainRequested(node="b", maintenance=True))
    bench.add(k.NodeLeft(node="c"))
    bench.conclude(a=20, b=1e6, d=1e6)
    bench.conclude(a=20, b=1e6, d=1e6)
    bench.add(joined("a", identity="1" * 32), "a")
    assert bad(list(judge_nodes(bench.state, None)))[:-1] == [
        ("wrong", "nodes", "a"), ("wrong", "nodes", "a"), ("note", "nodes", "b"), ("note", "nodes", "c"),
        ("wrong", "nodes", "d"),
    ]  # fmt: skip
    assert bad(list(judge_nodes(Bench().state, {}))) == [("wrong", "nodes", "nodes")]


def test_a_suspect_node_says_what_failed_there_and_what_ends_that() -> None:
    bench = suspect_node.suspect()
    (found,) = [one for one in judge_nodes(bench.state, None) if one.level == "wrong"]
    assert (found.about, found.todo) == ("bad", "repair it, then `dorm nodes trust bad`")
    assert found.text.startswith("suspect since 2023-11-14 22:13:20 UTC, so it takes nothing new: one failed (one: no ")


def test_settings() -> None:
    bench = Bench(a=2)
    assert bad(list(judge_settings(bench.state))) == []
    bench.add(k.SchedulingPaused(by="ops"), "ops")
    bench.add(k.PolicyChanged(policy="none such"), "ops")
    bench.say(
        k.PolicyFailed(policy="dorm", policy_version=1, code="policy.failed", reason="no", trigger="events", digest="")
    )
    assert bad(list(judge_settings(bench.state))) == [
        ("wrong", "settings", "dorm"), ("note", "settings", "scheduling"), ("note", "settings", "ops"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("builds", "level"),
    [
        ({"m": "dorm 0.6.0"}, "ok"),
        ({"m": "dorm 0.5.3", "n": "dorm 0.6.0"}, "note"),
        ({"m": "dorm 0.4.2"}, "wrong"),
        ({"m": "dorm 1.6.0"}, "wrong"),
        ({"m": "somebody's"}, "note"),
    ],
)
def test_versions(builds: dict[str, str], level: str) -> None:
    (found,) = judge_versions(builds, "dorm 0.6.0")
    assert found.level == level


def test_a_node_that_takes_nothing_new_says_why() -> None:
    bench = Bench()
    why = [k.Unfit("data_inodes", "its data folder /d is out of inodes"), k.Unfit("health_program", "GPU 3 is gone")]
    bench.add(joined("a", 4, offers=k.NodeOffers(unfit=why)))
    findings = list(judge_nodes(bench.state, agent()))
    assert bad(findings) == [("wrong", "nodes", "a")]
    (wrong,) = [one for one in findings if one.level == "wrong"]
    assert wrong.text == "its data folder /d is out of inodes; GPU 3 is gone"
