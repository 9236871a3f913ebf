"""Who is known on a cluster, as its log states it."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from dorm.core.identities import refusal_at
from dorm.core.snapshot import dump, load
from dorm.core.state import State, digest
from events import kinds as k
from events import subjects
from events.codec import encode
from events.identities import FOUNDING, MOST_REFUSALS, Identities, owned_id, tenant_in
from tests.core.records import CLUSTER, Bench, joined

KEY = "U" + "A" * 55


@dataclasses.dataclass
class Said:
    """A bench on which everyone speaks on a subject of their own."""

    bench: Bench = dataclasses.field(default_factory=Bench)

    def by(self, who: str, event: k.Event) -> str:
        """Store it as this author; return why it was refused, "" if it was not."""
        self.bench.raw(subjects.fact(CLUSTER, type(event).__name__, who), encode(event))
        found = refusal_at(self.state, self.state.seq)
        return found.code if found is not None else ""

    @property
    def state(self) -> State:
        return self.bench.state

    @property
    def known(self) -> Identities:
        assert self.state.known is not None
        return self.state.known


def trusting(**users: k.Role) -> Said:
    """A cluster with the admin `root` and these users."""
    said = Said()
    assert said.by("root", k.TrustEnabled(public_key=KEY)) == ""
    for name, role in users.items():
        assert said.by("root", k.UserAdded(name=name, role=role)) == ""
    return said


def test_a_cluster_that_has_been_open_stays_open() -> None:
    """Otherwise one message would end its masters, whose keys no record names."""
    said = Said()
    for number in range(FOUNDING):
        said.by("mallory", k.AppCancelRequested(app=f"a{number}"))
    said.by("mallory", k.TrustEnabled(public_key=KEY))
    assert said.state.known is None


@pytest.mark.parametrize("name", ["_", "master"])
def test_tokens_of_subjects_are_not_tenant_names(name: str) -> None:
    """A user of the tenant `_` could set the limits of all shipped folders."""
    said = trusting()
    assert said.by("root", k.UserAdded(name="mallory", role="user", tenant=name)) == "identity.name.reserved"
    assert said.by("root", k.UserAdded(name="mallory", role="user", tenant="lab")) == ""


def test_one_user_s_tokens_leave_room_for_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("events.identities.MOST_IDENTITIES", 10)
    said = trusting(mallory="reader", alice="user")

    def add(who: str, number: int, user: str = "") -> str:
        return said.by(who, k.TokenAdded(token=f"{who}-{number}", user=user or who, digest="0" * 64))

    assert [add("mallory", number) for number in range(7)] == [""] * 5 + ["identity.too_many"] * 2
    assert [add("alice", number) for number in range(4)] == [""] * 3 + ["identity.too_many"]
    assert add("alice", 0) == "", "one that is there is replaced"
    assert [add("root", number, "mallory") for number in range(3)] == [""] * 2 + ["identity.too_many"], (
        "an admin has all"
    )
    assert said.by("mallory", k.TokenRemoved(token="mallory-0")) == ""
    assert add("alice", 9) == "identity.too_many"
    assert add("root", 9) == ""


def test_an_open_cluster_accepts_only_the_founding_records() -> None:
    said = Said()
    before = digest(said.state)
    said.by("root", k.UserAdded(name="mallory", role="admin"))
    said.by("root", k.TokenAdded(token="t", user="root", digest="0" * 64))
    said.by("master", k.TrustEnabled())
    assert said.state.known is None
    assert said.state.counters.ignored == 3
    assert digest(said.state) != before  # The counters are part of it; the identities are not while there are none.
    assert said.state.known is None
    said.by("root", k.TrustEnabled(public_key=KEY, masters=[KEY], nodes=["n1"]))
    assert said.known.role_of("root") == "admin"
    assert (said.known.since, said.known.masters, list(said.known.nodes)) == (said.state.seq, [KEY], ["n1"])


@pytest.mark.parametrize(
    "event",
    [
        k.TrustEnabled(),
        k.UserAdded(name="mallory", role="admin"),
        k.UserRemoved(name="root"),
        k.NodeEnrolled(node="n9"),
        k.NodeExpelled(node="n1"),
        k.TokenAdded(token="t", user="root", digest="0" * 64),
    ],
)
@pytest.mark.parametrize("who", ["mallory", "bob", "op", "n1", "master"])
def test_only_admins_change_identities(who: str, event: k.Event) -> None:
    said = trusting(bob="user", op="operator")
    said.by("root", k.NodeEnrolled(node="n1"))
    before = said.known.users.copy(), said.known.nodes.copy(), said.known.tokens.copy()
    assert said.by(who, event) == "identity.not_admin"
    assert (said.known.users, said.known.nodes, said.known.tokens) == before
    assert said.known.refused == 1


def test_an_admin_changes_users_and_nodes() -> None:
    said = trusting(bob="user")
    assert said.by("root", k.UserAdded(name="bob", role="operator", tenant="vision", public_key=KEY)) == ""
    assert said.known.operates("bob")
    assert said.known.tenant_of("bob") == "vision"
    assert said.by("bob", k.TokenAdded(token="bobs", user="bob", digest="1" * 64)) == ""
    assert said.by("bob", k.TokenAdded(token="roots", user="root", digest="1" * 64)) == "identity.not_admin"
    assert said.by("root", k.TokenAdded(token="roots", user="root", digest="2" * 64)) == ""
    assert said.by("bob", k.TokenAdded(token="roots", user="bob", digest="1" * 64)) == "identity.not_admin"
    assert said.by("bob", k.TokenRemoved(token="roots")) == "identity.not_admin"
    assert said.by("root", k.TokenRemoved(token="roots")) == ""
    assert said.by("root", k.UserRemoved(name="bob")) == ""
    assert (said.known.role_of("bob"), said.known.tokens) == (None, {})
    assert said.by("root", k.UserRemoved(name="bob")) == "identity.user.not_found"
    assert said.by("root", k.NodeExpelled(node="n7")) == "identity.node.not_found"


def test_there_is_always_an_admin() -> None:
    said = trusting(ann="admin")
    assert said.by("ann", k.UserRemoved(name="root")) == ""
    assert said.by("ann", k.UserRemoved(name="ann")) == "identity.last_admin"
    assert said.by("ann", k.UserAdded(name="ann", role="user")) == "identity.last_admin"


def test_users_and_nodes_share_one_namespace() -> None:
    said = trusting(bob="user")
    assert said.by("root", k.NodeEnrolled(node="bob")) == "identity.name.taken"
    assert said.by("root", k.NodeEnrolled(node="n1")) == ""
    assert said.by("root", k.UserAdded(name="n1", role="admin")) == "identity.name.taken"
    assert said.by("root", k.UserAdded(name="master", role="admin")) == "identity.name.taken"


def test_an_expelled_node_gets_nothing_new() -> None:
    said = trusting()
    said.by("root", k.NodeEnrolled(node="n1"))
    said.by("n1", joined("n1"))
    assert said.state.nodes["n1"].usable
    said.by("root", k.NodeExpelled(node="n1"))
    assert not said.state.nodes["n1"].usable


def test_only_the_latest_refusals_are_kept() -> None:
    said = trusting()
    for _ in range(MOST_REFUSALS + 5):
        said.by("mallory", k.UserRemoved(name="root"))
    assert (said.known.refused, len(said.known.refusals)) == (MOST_REFUSALS + 5, MOST_REFUSALS)


def test_a_snapshot_holds_them() -> None:
    said = trusting(bob="user")
    said.by("root", k.NodeEnrolled(node="n1", capacity={"cpu": 1}, labels={"a": "b"}, addresses=["x"], ports=(1, 2)))
    info, body = dump(said.state, build="b")
    again = load(info, body, build="b")
    assert again is not None
    assert digest(again) == digest(said.state)


@pytest.mark.parametrize(
    ("id", "tenant"),
    [("ann//x", "ann"), ("ann/x", ""), ("//x", ""), ("ann//", ""), ("a.b//x", ""), ("https://x", ""), ("ann", "")],
)
def test_an_id_names_its_tenant(id: str, tenant: str) -> None:
    assert tenant_in(id) == tenant
    assert tenant_in(owned_id("bob", id)) == "bob"


def test_bounds_hold_at_decoding() -> None:
    wrong: list[dict[str, Any]] = [
        {"name": "a.b"},
        {"name": ""},
        {"name": "x" * 65},
        {"name": "bob", "role": "root"},
        {"name": "bob", "public_key": "short"},
        {"name": "bob", "tenant": "a/b"},
    ]
    said = trusting()
    for body in wrong:
        said.bench.raw("dorm.c.UserAdded.root", msgspec.json.encode(body))
    assert said.state.counters.unreadable == len(wrong)
