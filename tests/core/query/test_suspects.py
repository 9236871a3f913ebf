"""What people see of suspect nodes, and of nodes that apps avoid."""

from __future__ import annotations

import msgspec

from dorm.core.faults import failed_here, failed_there, failed_where, suspicion, with_remedy
from dorm.core.query.views import describe, describe_node, node_rows, note_of
from events import kinds as k
from events.quantities import SECOND
from tests.core import suspect_node
from tests.core.suspect_node import BAD


def test_a_suspect_node_says_what_failed_since_when_and_what_ends_that() -> None:
    bench = suspect_node.suspect()
    rows = {row.name: row for row in node_rows(bench.state)}
    row = rows[BAD]
    assert (row.condition, rows["good"].condition, rows["good"].suspect) == ("suspect", "up", None)
    assert row.suspect is not None
    assert (len(row.suspect.apps), row.suspect.failed_probes, row.suspect.probe) == (3, 0, "")
    assert row.trouble == (
        "bad is suspect since 2023-11-14 22:13:20 UTC, so it takes nothing new: one failed (one: no such file), "
        "three failed (three: no such file) and two failed (two: no such file); one app is tried there at "
        "2023-11-14 22:43:20 UTC or later; repair it, and `dorm nodes trust bad` ends this"
    )
    assert (
        with_remedy(bench.state, bench.state.nodes["good"]) == suspicion(bench.state, bench.state.nodes["good"]) == ""
    )
    msgspec.json.encode(rows)


def test_a_probe_is_named() -> None:
    bench = suspect_node.suspect()
    bench.wait(1801)
    bench.submit("four", n_max=1, weight=9)
    bench.settle()
    node = bench.state.nodes[BAD]
    assert node.suspect is not None
    probe = bench.state.apps[node.suspect.probe]
    assert suspicion(bench.state, node).endswith(f"; {probe.name} is tried there now")
    suspect_node.fails(bench, probe.name)
    assert "; one app is tried there after 1 that failed at 2023-11-14 23:" in suspicion(bench.state, node)


def test_an_app_says_where_it_failed_and_which_nodes_it_avoids() -> None:
    bench = suspect_node.failing()
    assert describe(bench.app("one"), bench.now, bench.state)["failed_on"] == []
    suspect_node.fails(bench, "one")
    found = describe(bench.app("one"), bench.now, bench.state)
    assert found["failed_on"] == [
        {
            "app": bench.app("one").id, "name": "one", "node": BAD, "failure": "command", "why": "one: no such file",
            "at": bench.now, "tries": 1, "avoided": True,
        }
    ]  # fmt: skip
    assert found["avoids"] == "bad (one: no such file)"
    assert describe(bench.app("one"), bench.now)["avoids"] == "", "an app alone does not know it"
    assert note_of(bench.app("one"), bench.now) == (
        "slot 0 on bad: one: no such file; it is tried on another node than bad, which costs no retry yet"
    )
    later = bench.now + 3600 * SECOND
    assert describe(bench.app("one"), later, bench.state)["avoids"] == ""


def test_a_node_says_which_apps_failed_there() -> None:
    bench = suspect_node.failing()
    for name in ("one", "two"):
        suspect_node.fails(bench, name)
    found = describe_node(bench.state, bench.state.nodes[BAD], bench.now)
    assert [(one["name"], one["why"], one["avoided"]) for one in found["failed"]] == [
        ("one", "one: no such file", True),
        ("two", "two: no such file", True),
    ]
    assert [one["app"] for one in found["containers_now"] if one["state"] != "exited"] == [bench.app("three").id]
    assert found["suspect"] is None
    bench.add(k.NodeTrustRequested(node=BAD, reason="a new disk"))
    assert failed_here(bench.state, bench.state.nodes[BAD], bench.now) == []
    assert failed_where(bench.state, bench.app("one"), bench.now) == []


def test_an_operator_s_word_ends_what_apps_avoid_even_if_the_node_has_forgotten_the_failure() -> None:
    """Another app that needs no less has run well there since, so the node no longer holds the failure against itself."""
    bench = suspect_node.failing()
    suspect_node.fails(bench, "one")
    suspect_node.fails(bench, "two")
    del bench.state.nodes[BAD].failed[bench.app("one").id]
    bench.add(k.NodeTrustRequested(node=BAD))
    assert bench.app("one").failed_on == bench.app("two").failed_on == {}


def test_more_failures_than_are_named_and_reasons_that_are_withheld() -> None:
    bench = suspect_node.suspect()
    apps = [f"app-{number}" for number in range(6)]
    assert failed_there(bench.state, apps, ["(withheld)"] * 6) == (
        "app-0 failed, app-1 failed, app-2 failed, app-3 failed, and 2 more"
    )
    assert failed_there(bench.state, ["x"], []) == "x failed"
    assert failed_there(bench.state, [], []) == "apps failed there"
