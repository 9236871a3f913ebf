"""Stories of suspect nodes, of the apps that failed there, and of those that run there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.state import State
from events import kinds as k
from replay.gist import gist
from replay.story.app_teller import AppTeller
from replay.story.explanation import Witness, explain
from replay.story.node import NodeTeller
from replay.travel import fold
from tests.core import suspect_node
from tests.core.suspect_node import BAD

if TYPE_CHECKING:
    from replay.story.chapters import Chapter
    from tests.core.records import Bench


def of_node(bench: Bench) -> dict[str, Chapter]:
    state, teller = State(), NodeTeller(BAD)
    fold(state, bench.records, len(bench.records), None, teller.see)
    return {chapter.what: chapter for chapter in teller.story()}


def of_app(bench: Bench, name: str) -> dict[str, Chapter]:
    state, teller = State(), AppTeller(name)
    fold(state, bench.records, len(bench.records), None, teller.see)
    return {chapter.what: chapter for chapter in teller.story()}


def explained(bench: Bench, name: str) -> str:
    state, witness = State(), Witness(name)
    fold(state, bench.records, len(bench.records), None, witness.see)
    return explain(state, witness, bench.now).text


def test_a_node_becomes_suspect_and_an_operator_trusts_it() -> None:
    bench = suspect_node.suspect()
    bench.wait(60)
    bench.add(k.NodeTrustRequested(node=BAD, by="ops", reason="a new disk"), "ops")
    told = of_node(bench)
    assert told["suspected"].text == (
        "suspect, so it takes nothing new: one failed (one: no such file), three failed (three: no such file) and two failed "
        "(two: no such file): 3 different apps failed there within 60 min, and apps run on other nodes; one app is tried "
        "there at 2023-11-14 22:43:20 UTC or later"
    )
    assert (told["trusted"].text, told["trusted"].by) == ("ops had bad trusted again: a new disk", "ops")
    assert [cause.position for cause in told["trusted"].causes] == [told["suspected"].position]


def test_an_app_whose_failure_may_be_its_nodes() -> None:
    bench = suspect_node.suspect()
    bench.settle()
    told = of_app(bench, "one")
    assert told["retried"].text == (
        "generation 1 failed: slot 0 on bad: one: no such file; it is tried on another node than bad, which costs no "
        "retry yet; it is retried at 2023-11-14 22:13:21 UTC or later (open whose fault it is, so it costs no retry)"
    )
    assert told["node_suspected"].text == (
        "bad is suspect, because 2 other apps failed there as well; what failed there is the node's fault"
    )
    assert "It avoids bad (one: no such file), because it failed there." in explained(bench, "one")
    assert "node_suspected" not in of_app(bench, "well")
    bench.say(k.NodeTrusted(node=BAD, how="evidence", reason="of the master"))
    told = of_app(bench, "one")
    assert told["node_trusted"].text == "bad is trusted again: the apps that failed there turned out to be broken"
    assert [cause.position for cause in told["node_trusted"].causes] == [told["node_suspected"].position]
    assert of_node(bench)["trusted"].text.startswith("trusted again: ")


def test_an_app_that_runs_on_a_suspect_node_stays() -> None:
    bench = suspect_node.failing()
    bench.started("three")
    for name in ("one", "two"):
        suspect_node.fails(bench, name)
    bench.say(k.NodeSuspected(node=BAD, reason="for a test", apps=[bench.app("one").id], failures=["no such file"]))
    told = of_app(bench, "three")
    assert told["node_suspected"].text == (
        "bad, where it has 1 container, is suspect and takes nothing new; what runs there stays"
    )
    text = explained(bench, "three")
    assert "on bad (1, suspect)" in text
    assert "It is not resized while bad is suspect." in text


def test_a_decision_answers_a_node_that_is_suspect_or_trusted() -> None:
    bench = suspect_node.suspect()
    bench.wait(2)
    bench.add(k.NodeTrustRequested(node=BAD, by="ops"), "ops")
    bench.settle()
    told = of_app(bench, "one")
    assert "ops had bad trusted again" in " ".join(cause.text for one in told.values() for cause in one.causes)


def test_the_gist_names_apps_and_their_failures() -> None:
    event = k.NodeSuspected(
        node="n1",
        reason="2 different apps",
        apps=["a-1", "b-2"],
        failures=["no such file"],
        probe_at=1_700_000_000 * 10**9,
    )
    assert gist(event) == ("node=n1 failed=a-1 (no such file), b-2 probe_at=2023-11-14T22:13:20.000Z: 2 different apps")
    assert "least=0" in gist(event, whole=True)
    assert gist(k.NodeTrusted(node="n1", how="probe", reason="it runs")) == "node=n1 how=probe reason=it runs"
