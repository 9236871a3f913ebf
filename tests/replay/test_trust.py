"""A log with identities shows who was refused and why, also under other names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.query.assumed import Assumed
from dorm.core.query.plans import plan
from events import kinds as k
from events import subjects
from events.codec import encode
from replay.audit.audit import verify
from tests.core.records import document
from tests.replay.export.test_anonymize import same_audit
from tests.replay.made_log import CLUSTER, Story, all_facts, log_of

if TYPE_CHECKING:
    from events.log.records import Record


def hostile_log() -> Story:
    """Ann's and Mallory's apps of one name, and what Mallory and a node tried beside that."""
    story = Story(nodes=2)

    def by(who: str, event: k.Event) -> None:
        story.store(subjects.fact(CLUSTER, type(event).__name__, who), encode(event), event.id)

    by("root", k.TrustEnabled(id="root.1", nodes=["n0", "n1"]))
    for user in ("ann", "mallory"):
        by("root", k.UserAdded(id=f"root.{user}", name=user))
    by("root", k.UserAdded(id="root.rea", name="rea", role="reader"))
    by("root", k.TokenAdded(id="root.t", token="anns-token", user="ann", digest="ab" * 32))
    for number in range(3):
        for user in ("ann", "mallory"):
            by(user, k.AppSubmitted(id=f"{user}//{number}", by="ann", spec=document(f"app{number % 2}")))
        story.settle()
    anns = next(app for app in story.state.apps.values() if app.tenant == "ann")
    by("mallory", k.AppCancelRequested(id="mallory//c", app=anns.id, by="ann"))
    by("mallory", k.AppUpdated(id="mallory//u", app=anns.id, weight=9.0))
    by("mallory", k.NodeDrainRequested(id="mallory//d", node="n0"))
    by("rea", k.AppSubmitted(id="rea//s", spec=document("more")))
    by("n1", k.ContainerExited(id="n1.x", app=anns.id, generation=1, slot=0, node="n0"))
    story.settle()
    by("n1", k.NodeDrainRequested(id="n1.drain", node="n1", until_rejoin=True))
    by("root", k.UserRemoved(id="root.x", name="mallory"))
    by("mallory", k.AppSubmitted(id="mallory//after", spec=document("after")))
    story.settle()
    return story


def told(records: list[Record]) -> list[k.RefusedRecord]:
    return [one for fact in all_facts(records, k.RecordsRefused) for one in fact.records]


async def test_the_master_reports_refused_records() -> None:
    story = hostile_log()
    assert [(one.who, one.of, one.code) for one in told(story.records)] == [
        ("mallory", "AppCancelRequested", "app.not_owner"),
        ("mallory", "NodeDrainRequested", "identity.not_operator"),
        ("n1", "ContainerExited", "node.not_own"),
        ("mallory", "AppSubmitted", "identity.unknown"),
    ]
    assert story.state.known is not None
    assert (story.state.known.refused, story.state.known.untold) == (6, 0)
    report = await verify(log_of(story.records))
    assert report.divergence is None


async def test_an_anonymized_log_has_the_same_refusals() -> None:
    story = hostile_log()
    made = await same_audit(story.records)
    before, after = told(story.records), told(made)
    assert [(one.seq, one.of, one.code) for one in after] == [(one.seq, one.of, one.code) for one in before]
    assert {"ann", "mallory", "anns-token"}.isdisjoint(str(made).replace("'", " ").split())


def test_assumptions_need_no_authority() -> None:
    """A plan computes consequences, in no user's name."""
    story = hostile_log()
    found = plan(story.state, story.state.time, Assumed(drained=("n0",), settings={"theta1": 0.5}))
    assert all("n0" not in app.nodes_after for app in found.apps)
    assert story.state.known is not None
