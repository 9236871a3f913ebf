"""What each author may write: every kind of event by every role, and the limits of a hostile author."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from dorm.core.app import App
from dorm.core.authority import _RULES, _SCOPED
from dorm.core.snapshot import copy, restore
from events import kinds as k
from tests.core.fold.test_identities import Said, trusting
from tests.core.records import document, joined

WHO = ("ann", "mallory", "rea", "webhooks", "op", "root", "n1", "n2", "nobody", "master")
"""Users of two tenants, a reader, the one that deliverers run as, an operator, an admin, two nodes, and names that the cluster
does not know."""


def cluster() -> tuple[Said, App]:
    """Ann's app runs on the node n1."""
    said = trusting(ann="user", mallory="user", rea="reader", webhooks="reader", op="operator")
    for node in ("n1", "n2"):
        assert said.by("root", k.NodeEnrolled(node=node)) == ""
    assert said.by("n1", joined("n1")) == ""
    assert said.by("ann", k.AppSubmitted(spec=document("app", n_min=1, n_max=2))) == ""
    said.bench.settle()
    app = said.bench.app()
    for slot in app.generations[1].containers:
        assert said.by("n1", k.ContainerStarted(app=app.id, generation=1, slot=slot, node="n1")) == ""
    said.bench.settle()
    return said, app


def acts(app: str) -> dict[str, tuple[k.Event, str]]:
    """Each act, with those who may do it."""
    users, operators, deliverers = "ann mallory op root", "op root", "webhooks op root"
    of_app: dict[str, Any] = {"app": app, "generation": 1}
    digest_ = "0" * 64
    webhook = k.WebhookSet(webhook="w", url="http://x", events=[], key="k")
    return {
        "submit": (k.AppSubmitted(spec=document("other")), users),
        "update": (k.AppUpdated(app=app, weight=2.0), "ann op root"),
        "update by name": (k.AppUpdated(app="app", weight=2.0), "ann op root"),
        "cancel": (k.AppCancelRequested(app=app), "ann op root"),
        "retry": (k.AppRetryRequested(app=app), "ann op root"),
        "note": (k.AppNoted(app=app, text="the data are in"), "ann op root"),
        "hold": (k.AppHoldRequested(app=app), "ann op root"),
        "release": (k.AppReleaseRequested(app=app), "ann op root"),
        "edit": (k.AppEditRequested(app=app, spec=document("app", weight=2)), "ann op root"),
        "restart": (k.AppRestartRequested(app=app, fresh=True), "ann op root"),
        "drain": (k.NodeDrainRequested(node="n1"), operators),
        "forget": (k.NodeForgetRequested(node="n1"), operators),
        "trust a node": (k.NodeTrustRequested(node="n1"), operators),
        "pause": (k.SchedulingPaused(), operators),
        "resume": (k.SchedulingResumed(), operators),
        "undrain": (k.NodeDrainRequested(node="n1", drain=False), operators),
        "drain until it joins again": (k.NodeDrainRequested(node="n1", until_rejoin=True), "op root n1"),
        "settings": (k.PolicyChanged(node_lease_s=60.0), operators),
        "seal": (k.SealRequested(), operators),
        "rotation": (k.RotationRequested(), operators),
        "archive": (k.LogRotated(after=0, upto=1, chain="", snapshot="", archive="", bytes=1), "master"),
        "no archive": (k.RotationFailed(code="rotation.failed", reason="r"), "master"),
        "webhook": (webhook, operators),
        "webhook removed": (k.WebhookRemoved(webhook="w"), operators),
        "webhook test": (k.WebhookTestRequested(webhook="w"), operators),
        "webhook tested": (k.WebhookTested(webhook="w", test="t", delivered=True), deliverers),
        "webhook disabled": (k.WebhookDisabled(webhook="w", code="webhook.gone", reason="r"), deliverers),
        "waits long": (k.AppWaitsLong(app=app, since=0, after_s=1.0), deliverers),
        "trust": (k.TrustEnabled(), "root"),
        "user": (k.UserAdded(name="new", role="admin"), "root"),
        "user removed": (k.UserRemoved(name="rea"), "root"),
        "enrolled": (k.NodeEnrolled(node="n3"), "root"),
        "expelled": (k.NodeExpelled(node="n2"), "root"),
        "token": (k.TokenAdded(token="t", user="ann", digest=digest_), "ann root"),
        "joined": (joined("n1"), "n1"),
        "reported": (k.NodeReported(node="n1"), "n1"),
        "left": (k.NodeLeft(node="n1"), "n1"),
        "prepared": (k.ContainersPrepared(**of_app, node="n1"), "n1"),
        "delayed": (k.ContainerDelayed(**of_app, slot=0, node="n1"), "n1"),
        "started": (k.ContainerStarted(**of_app, slot=0, node="n1"), "n1"),
        "exited": (k.ContainerExited(**of_app, slot=0, node="n1", exit_code=0), "n1"),
        "checkpointed": (k.AppCheckpointed(**of_app, step=9), "n1"),
        "progressed": (k.AppProgressed(**of_app, step=9), "n1"),
        "resize requested": (k.AppResizeRequested(**of_app, containers=1), "n1"),
        "membership": (k.MembershipChanged(**of_app, membership=1, step=9, members=[0], change="start"), "n1"),
        "epoch": (k.EpochCompleted(**of_app, epoch=1, step=9, samples=9), "n1"),
    }


def test_every_act_by_every_author() -> None:
    """An author who may not do it changes nothing but the note of that; others are never refused for who they are."""
    said, app = cluster()
    start, length, now = copy(said.state), len(said.bench.records), said.bench.now
    plain = msgspec.to_builtins(said.state)
    tried = 0
    for name, (event, allowed) in acts(app.id).items():
        for who in WHO:
            said.bench.state, said.bench.now = restore(start), now
            del said.bench.records[length:]
            code = said.by(who, event)
            tried += 1
            if who in allowed.split():
                assert code == "", (name, who)
                continue
            assert code, (name, who)
            assert said.known.refusals[-1].who == who
            before, after = dict(plain), msgspec.to_builtins(said.state)
            if type(event) in _SCOPED and said.known.role_of(who):
                (answer,) = after.pop("submissions").values()  # A known user gets the reason.
                assert (answer["refused_code"], answer["who"]) == (code, who)
                before.pop("submissions")
            for changed in ("seq", "known"):
                before.pop(changed), after.pop(changed)
            assert after == before, (name, who)
    assert tried == len(acts("")) * len(WHO)


def test_every_kind_has_a_rule() -> None:
    """The round is guarded by its subject and its signature, identities by the rules that agents share."""
    without = {k.Round, *get_args(k.OfIdentities)}
    assert set(get_args(k.Published)) - without == set(_RULES)


def test_the_author_is_the_subject() -> None:
    """Neither `by`, nor the spec's user, nor the id gives a submission to another user."""
    said, app = cluster()
    assert said.by("mallory", k.AppSubmitted(id="ann//1", by="ann", spec=document("app"))) == ""
    said.bench.settle()
    other = said.state.find_app("app", "mallory")
    assert other is not None
    assert (other.user, other.tenant, other.submission) == ("mallory", "mallory", "mallory//ann//1")
    assert said.by("mallory", k.AppSubmitted(spec={**document("more"), "user": "ann"})) == "submission.user.not_own"
    assert said.state.find_app("app", "ann") is app


def test_requests_about_unknown_apps_do_not_search_all_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose each app is has to be computed: for all of many apps and every record, that would be the master's whole time."""
    said, _ = cluster()
    looked: list[str] = []
    tenant: Any = App.tenant.fget  # type: ignore[attr-defined]  # It is a property.

    def noted(app: App) -> str:
        looked.append(app.id)
        return str(tenant(app))

    monkeypatch.setattr(App, "tenant", property(noted))
    said.by("mallory", k.AppCancelRequested(app="no-such-app"))
    assert looked == []
    said.by("mallory", k.AppCancelRequested(app="app"))
    assert set(looked) == {said.bench.app().id}


def test_a_guessed_submission_id_takes_nothing() -> None:
    """Mallory submits first under the id that Ann is about to use; both get their own app of that name."""
    said, _ = cluster()
    for who in ("mallory", "ann"):
        assert said.by(who, k.AppSubmitted(id="ann//nightly", spec=document("nightly"))) == ""
    said.bench.settle()
    owners = {app.tenant: app.submission for app in said.state.apps.values() if app.name == "nightly"}
    assert owners == {"ann": "ann//nightly", "mallory": "mallory//ann//nightly"}
    # Nor does the id of an update or of an unreadable submission.
    said.by("mallory", k.AppUpdated(id="ann//daily", app="none", weight=2.0))
    said.bench.raw("dorm.c.AppSubmitted.mallory", b"\xc1", "ann//daily")
    assert said.by("ann", k.AppSubmitted(id="ann//daily", spec=document("daily"))) == ""
    said.bench.settle()
    found = said.state.find_app("daily", "ann")
    assert found is not None
    assert found.submission == "ann//daily"


def test_a_repeat_is_one_app() -> None:
    said, _ = cluster()
    for _ in range(2):
        said.by("ann", k.AppSubmitted(id="ann//x", spec=document("twice")))
        said.bench.settle()
    assert len([app for app in said.state.apps.values() if app.name == "twice"]) == 1


def test_names_belong_to_tenants() -> None:
    """A name that another tenant has is free, and requests by name concern the own app, running or still unanswered."""
    said, app = cluster()
    said.by("mallory", k.AppSubmitted(spec=document("app")))
    assert said.by("mallory", k.AppCancelRequested(app="app")) == ""  # The own submission, not Ann's app.
    said.bench.settle()
    assert not app.cancel_requested
    said.by("mallory", k.AppSubmitted(spec=document("app")))
    said.bench.settle()
    mallorys = said.state.find_app("app", "mallory")
    assert mallorys is not None
    assert mallorys is not app
    assert said.by("mallory", k.AppCancelRequested(app="app")) == ""
    assert (mallorys.cancel_requested, app.cancel_requested) == (True, False)
    assert said.by("ann", k.AppSubmitted(spec=document("app"))) == ""
    (refused,) = [fact for fact in said.bench.settle() if isinstance(fact, k.AppRejected)]
    assert refused.code == "spec.name.taken"
    assert said.state.find_app("ann//app") is app


def test_a_tenant_shares_its_apps() -> None:
    said, app = cluster()
    said.by("root", k.UserAdded(name="bob", tenant="ann"))
    assert said.by("bob", k.AppUpdated(app="app", weight=3.0)) == ""
    assert app.weight == 3.0


def test_a_removed_user_can_publish_nothing_and_the_apps_stay() -> None:
    said, app = cluster()
    said.by("root", k.UserRemoved(name="ann"))
    assert said.by("ann", k.AppCancelRequested(app=app.id)) == "identity.unknown"
    assert said.by("ann", k.AppSubmitted(spec=document("more"))) == "identity.unknown"
    said.bench.raw("dorm.c.AppSubmitted.ann", b"\xc1")
    assert (said.state.submissions, app.ended, app.cancel_requested) == ({}, "", False)
    assert said.by("op", k.AppCancelRequested(app=app.id)) == ""


def test_an_app_of_the_open_cluster_keeps_its_user() -> None:
    said = Said()
    said.bench.add(joined("n1"))
    said.by("ann", k.AppSubmitted(id="ann.1", by="ann", spec=document("app")))
    said.bench.settle()
    before = said.bench.app()
    assert len(before.id) == len("app-") + 6
    said.by("root", k.TrustEnabled(nodes=["n1"]))
    for name in ("ann", "mallory"):
        said.by("root", k.UserAdded(name=name))
    assert said.by("mallory", k.AppUpdated(app="app", weight=2.0)) == "app.not_owner"
    assert said.by("ann", k.AppUpdated(app="app", weight=2.0)) == ""
    assert said.by("n1", k.ContainerStarted(app=before.id, generation=1, slot=0, node="n1")) == ""


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        ({}, ""),
        ({"cpu": 4}, ""),
        ({"cpu": 5}, "node.capacity.beyond_enrolment"),
        ({"capacity": {"cpu": 1, "gpu": 1}}, "node.capacity.beyond_enrolment"),
        ({"labels": {"zone": "b"}}, "node.label.not_enrolled"),
        ({"labels": {"zone": "a", "type": "fast"}}, "node.label.not_enrolled"),
        ({"labels": {"zone": "a"}}, ""),
        ({"address": "10.0.0.9"}, "node.address.not_enrolled"),
        ({"ports": (20_000, 30_001)}, "node.ports.beyond_enrolment"),
        ({"ports": (30_000, 20_000)}, "node.ports.beyond_enrolment"),
    ],
)
def test_a_node_claims_only_its_enrolled_capacity(claims: dict[str, Any], code: str) -> None:
    said = trusting()
    said.by(
        "root",
        k.NodeEnrolled(
            node="n1", capacity={"cpu": 4000}, labels={"zone": "a"}, addresses=["10.0.0.1"], ports=(20_000, 30_000)
        ),
    )
    base = joined("n1", 4)
    fields = {"address": "10.0.0.1", "ports": (20_000, 30_000), "labels": {}, **claims}
    if "cpu" in fields:
        fields["capacity"] = {"cpu": int(str(fields.pop("cpu"))) * 1000}
    assert said.by("n1", msgspec.structs.replace(base, **fields)) == code
    assert ("n1" in said.state.nodes) is (code == "")


def test_ids_of_apps_are_too_long_to_guess() -> None:
    _, app = cluster()
    assert len(app.id) == len("app-") + 12


def test_an_open_cluster_enforces_nothing() -> None:
    said = Said()
    said.bench.add(joined("n1"))
    said.by("mallory", k.AppSubmitted(id="x", by="ann", spec=document("app")))
    said.bench.settle()
    assert said.bench.app().user == "ann"
    said.by("bob", k.AppCancelRequested(app="app"))
    assert said.bench.app().cancel_requested


def test_a_round_that_states_more_refusals_than_there_were_stops_no_decision() -> None:
    said, _ = cluster()
    said.known.told, said.known.untold = 2**40, 0
    said.by("rea", k.PolicyChanged(policy="drf"))
    assert said.known.untold == 1
    assert not [fact for fact in said.bench.decide() if isinstance(fact, k.RecordsRefused)]
