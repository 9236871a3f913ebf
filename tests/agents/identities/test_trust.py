"""What an agent believes on a cluster that knows its users, nodes and masters: the same as the master."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from events import kinds as k
from events.chain import SealKey, new_seed, signed_round
from events.codec import encode
from replay.audit.audit import verify
from tests.agents import folding
from tests.core.fold.test_identities import Said
from tests.core.records import Bench, document, joined
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from agents.desired import Desired

KEY, STRANGER = SealKey(new_seed()), SealKey(new_seed())


class Signing(Bench):
    """A master that signs its rounds once the cluster names its key."""

    key: SealKey | None = KEY

    def add(self, event: k.Event, who: str = "someone") -> k.Event:
        if isinstance(event, k.Round) and self.state.known is not None and self.key is not None:
            event = signed_round(self.key, event, self.state.round_seq)
        return super().add(event, who)


def cluster(**enrolled: Any) -> tuple[Said, Signing]:
    bench = Signing()
    said = Said(bench)
    said.by("root", k.TrustEnabled(masters=[KEY.public]))
    said.by("root", k.UserAdded(name="ann"))
    said.by("root", k.UserAdded(name="op", role="operator"))
    said.by("root", k.NodeEnrolled(**{"node": "n1", **enrolled}))
    said.by("n1", joined("n1", identity="i1"))
    return said, bench


def desired_of(bench: Bench) -> Desired:
    return folding.desired_of(bench.records, "n1")


def submitted(said: Said, bench: Signing) -> None:
    said.by("ann", k.AppSubmitted(spec=document("app", n_min=1, n_max=2)))
    bench.settle()


async def test_signed_rounds_are_obeyed_and_others_are_not() -> None:
    said, bench = cluster()
    submitted(said, bench)
    desired = desired_of(bench)
    assert desired.due
    assert (await verify(log_of(bench.records))).divergence is None
    app = bench.app()
    for key in (None, STRANGER):
        bench.key = key
        bench.say(k.AppCancelled(app=app.id, generation=1))
        desired = desired_of(bench)
        assert desired.wanted(), "the app still has to run"
    report = await verify(log_of(bench.records))
    assert report.divergence is not None
    assert (report.divergence.seq, "signed" in report.divergence.what) == (len(bench.records) - 1, True)


def test_a_signed_round_stored_again_is_not_obeyed() -> None:
    said, bench = cluster()
    submitted(said, bench)
    old = next(record for record in bench.records if b"GenerationReleased" in record.body)
    before = desired_of(bench)
    bench.raw(old.subject, old.body)
    after = desired_of(bench)
    assert (after.due, after.epoch) == (before.due, before.epoch)
    # Nor where its basis would let it pass: then its predecessor is another record.
    bench.raw(old.subject, encode(msgspec.structs.replace(_round(old), basis=bench.state.seq)))
    assert (desired_of(bench).due, desired_of(bench).epoch) == (before.due, before.epoch)


def _round(record: object) -> k.Round:
    from events.codec import decode

    event = decode(record)  # type: ignore[arg-type]
    assert isinstance(event, k.Round)
    return event


def test_a_round_decided_before_the_keys_changed_counts() -> None:
    said, bench = cluster()
    basis = bench.state.seq
    new = SealKey(new_seed())
    said.by("root", k.TrustEnabled(masters=[new.public]))
    bench.say(k.MasterElected(epoch=2), basis=basis, epoch=2)
    assert desired_of(bench).epoch == 2
    bench.say(k.MasterElected(epoch=3), epoch=3)
    assert desired_of(bench).epoch == 2
    bench.key = new
    bench.say(k.MasterElected(epoch=3), epoch=3)
    assert desired_of(bench).epoch == 3


def test_only_operators_change_the_lease() -> None:
    said, bench = cluster()
    for who in ("ann", "n1", "nobody"):
        said.by(who, k.PolicyChanged(node_lease_s=60.0))
    assert desired_of(bench).lease_s == bench.state.settings.node_lease_s == 300.0
    said.by("op", k.PolicyChanged(node_lease_s=60.0))
    assert desired_of(bench).lease_s == bench.state.settings.node_lease_s == 60.0


@pytest.mark.parametrize(
    ("enrolled", "code"),
    [
        ({}, ""),
        ({"capacity": {"cpu": 1000}}, "node.capacity.beyond_enrolment"),
        ({"node": "n2"}, "identity.node.unknown"),
    ],
)
def test_an_agent_knows_that_its_announcement_was_refused(enrolled: dict[str, Any], code: str) -> None:
    _, bench = cluster(**enrolled)
    desired = folding.desired_of(bench.records, "n1", part_at=bench.state.seq - 1)
    assert (desired.refused.code if desired.refused is not None else "") == code
    assert ("n1" in bench.state.nodes) is (desired.holder == "i1") is (code == "")


def test_an_expelled_node_starts_nothing_more() -> None:
    said, bench = cluster()
    said.by("root", k.NodeExpelled(node="n1"))
    desired = desired_of(bench)
    assert not desired.enrolled
    said.by("root", k.NodeEnrolled(node="n1"))
    said.by("n1", joined("n1", identity="i1"))
    assert desired_of(bench).enrolled
    assert bench.state.nodes["n1"].usable
