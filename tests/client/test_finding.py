"""Which app a user means by a name that several tenants have."""

from __future__ import annotations

from typing import Any

from dorm.client.errors import NotFound
from dorm.client.finding import find_app, no_rank
from events import kinds as k
from tests.core.fold.test_identities import trusting
from tests.core.records import document, joined
from tests.errors import raises


def test_an_app_of_ones_own_tenant_is_found_first_and_others_by_id() -> None:
    said = trusting(ann="user", bob="user", op="operator")
    assert said.by("root", k.NodeEnrolled(node="n1")) == ""
    assert said.by("n1", joined("n1")) == ""
    for who in ("ann", "bob"):
        assert said.by(who, k.AppSubmitted(spec=document("digits"))) == ""
    said.bench.settle()
    state = said.bench.state
    of = {app.tenant: app.id for app in state.apps.values()}
    assert set(of) == {"ann", "bob"}
    assert [find_app(state, "digits", who).id for who in ("ann", "bob")] == [of["ann"], of["bob"]]
    assert find_app(state, of["bob"], "op").id == of["bob"]
    with raises(NotFound, "app.ambiguous", f"{of['ann']} of ann, {of['bob']} of bob"):
        find_app(state, "digits", "op")
    # An ended app does not hide a live one.
    assert said.by("ann", k.AppCancelRequested(app=of["ann"])) == ""
    said.bench.settle()
    assert state.apps[of["ann"]].ended
    assert find_app(state, "digits", "op").id == of["bob"]


def test_a_rank_of_a_process_is_found_in_its_container() -> None:
    """torchrun and mpirun start several processes in a container, with separate ranks."""
    said = trusting(ann="user")
    options: dict[str, Any] = {"engine": "torchrun", "engine_options": {"processes": 2}, "n_min": 2}
    assert said.by("ann", k.AppSubmitted(spec=document("train", **options))) == ""
    said.bench.settle()
    app = find_app(said.bench.state, "train", "ann")
    assert "rank 3; its only one is 0" in str(no_rank(app, "generation 1 of train", 3, 1))
    for rank, wanted in ((3, "the process of rank 3 is in train/1"), (4, "name one of 0 to 1")):
        text = str(no_rank(app, "generation 1 of train", rank, 2))
        assert wanted in text
    assert "process" not in text
