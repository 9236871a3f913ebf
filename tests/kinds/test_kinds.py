"""A kind is declared once: what was a table of its own follows from that, and says the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, get_args

import pytest

from dorm.cli import top as top_view
from dorm.cli.events import style_of
from dorm.core import authority, evolve, rounds
from dorm.core.folded import concerns_no_state
from dorm.core.query import concerns
from dorm.security import roles
from events import kinds as k
from events.fields import held_in, types_of, without_none
from events.spec import AppSpec, editing
from events.spec.abilities import ABILITIES
from events.spec.declared import declared_in
from replay.export import anonymize, tables
from replay.simulator.forks import work_history
from replay.tenants import hiding
from tests.kinds import oracle

if TYPE_CHECKING:
    from collections.abc import Iterable

STAND_INS = (k.Unknown, k.Unreadable)
FORGOTTEN = {
    "RotationRequested", "TokenAdded", "TokenRemoved", "TrustEnabled", "UserAdded", "UserRemoved", "NodeEnrolled",
    "NodeExpelled", "WebhookSet", "WebhookRemoved", "WebhookTestRequested",
}  # fmt: skip
"""Kinds that the table of users in exported tables lacked: people publish these, too."""


def named(kinds: Iterable[Any]) -> list[str]:
    return sorted(kind if isinstance(kind, str) else kind.__name__ for kind in kinds)


# --- the unions and the handlers, which stay written out ----------------------------------------------------------------


def all_kinds() -> set[type[k.Event]]:
    return {cls for cls in k.Event.__subclasses__() if cls.__module__.startswith("events.kinds.")}


def test_the_unions_name_every_kind() -> None:
    assert all_kinds() == {*k.EVENTS, k.Round, *STAND_INS}
    assert len(set(k.EVENTS)) == len(k.EVENTS)


def test_every_kind_says_what_it_is() -> None:
    assert all("KIND" in vars(kind) for kind in all_kinds())
    facts = set(get_args(k.MasterFact))
    for kind in k.EVENTS:
        assert kind.KIND.writers
        assert (kind.KIND.stored == "round") == (kind in facts)
        assert (kind.KIND.rule == "round") == (kind in facts)


def test_every_kind_has_a_handler_in_the_fold() -> None:
    assert set(evolve._HANDLERS) == {*get_args(k.Published), *STAND_INS}
    assert set(rounds._FACTS) <= set(get_args(k.MasterFact))


def test_a_kind_that_changes_no_state_has_the_handler_that_does_nothing() -> None:
    idle = {kind for kind, handler in evolve._HANDLERS.items() if handler is concerns_no_state}
    assert idle == {kind for kind in k.EVENTS if not kind.KIND.folded}


def test_what_a_kind_is_about_stands_in_its_fields() -> None:
    for kind in k.EVENTS:
        fields = {name: held_in(without_none(type_)) for name, type_ in types_of(kind).items()}
        about_app, about_node = fields.get("app") == "app", fields.get("node") == "node"
        match kind.KIND.on:
            case "app":
                assert about_app or kind is k.AppSubmitted
            case "node":
                assert about_node
                assert not about_app
            case "cluster" | "apps":
                assert not about_app
                assert not about_node


# --- what follows, and the tables before --------------------------------------------------------------------------------


def test_servers_permit_the_same() -> None:
    assert roles.PUBLISHES == oracle.PUBLISHES
    assert roles._OF_DELIVERERS == oracle.DELIVERERS


def test_authority_has_the_same_rules() -> None:
    assert {kind.__name__: rule.__name__ for kind, rule in authority._RULES.items()} == oracle.RULES
    assert named(authority._SCOPED) == list(oracle.SCOPED)
    assert {kind for kind in k.EVENTS if kind.KIND.rule == "identity"} == set(get_args(k.OfIdentities))
    assert set(authority._BY_WORD) | {"identity", "round"} == set(get_args(k.Rule))


def test_filters_learn_from_the_same_kinds() -> None:
    assert named(concerns._REQUESTS) == list(oracle.REQUESTS)
    assert concerns._ANSWERED == oracle.ANSWERED
    assert named(concerns._AGENTS) == list(oracle.AGENTS)
    assert named(concerns._CLIENTS) == list(oracle.CLIENTS)
    assert named(concerns._MASTERS) == list(oracle.MASTERS)
    assert named(concerns._ABOUT_NODES) == list(oracle.ABOUT_NODES)
    assert concerns.KINDS == oracle.KINDS


def test_tenants_see_the_same_kinds() -> None:
    assert named(hiding.SHOWN) == list(oracle.SHOWN)
    assert named(hiding.REQUESTS) == list(oracle.REQUESTS_OF_TENANTS)


def test_exports_know_the_same_authors() -> None:
    assert named(anonymize._AGENTS) == list(oracle.AGENTS)
    assert named(anonymize._MASTERS) == list(oracle.APART)
    assert set(named(tables._CLIENTS)) == {*oracle.USERS_IN_TABLES, *FORGOTTEN}


def test_forks_repeat_the_same_requests() -> None:
    assert named(work_history._CLIENTS) == list(oracle.REPEATED_BY_FORKS)


def test_lists_for_people_are_the_same() -> None:
    assert named(top_view.NOISE) == list(oracle.NOISE)
    lists = {name: named(kind for kind in k.EVENTS if name in kind.KIND.lists) for name in get_args(k.List)}
    assert lists["news"] == sorted(oracle.NOTABLE)
    assert {name: lists[name] for name in oracle.GROUPS} == {name: sorted(of) for name, of in oracle.GROUPS.items()}
    kinds: list[type[k.Event]] = [*k.EVENTS, *STAND_INS]
    for kind in kinds:
        event = type(kind.__name__, (), {"KIND": kind.KIND})()
        assert style_of(event) == oracle.STYLES.get(kind.__name__, "bold cyan")


# --- specs --------------------------------------------------------------------------------------------------------------


def test_edits_of_a_spec_do_the_same() -> None:
    assert named(editing.AT_ONCE) == list(oracle.AT_ONCE)
    assert editing.NEVER == oracle.NEVER
    assert editing.BEFORE_START == oracle.BEFORE_START


def test_fields_need_abilities_that_agents_have() -> None:
    needed = {declared.needs for declared in declared_in(AppSpec).values()} - {""}
    assert needed < set(ABILITIES)


@pytest.mark.parametrize("kind", k.EVENTS, ids=lambda kind: kind.__name__)
def test_names_of_kinds_are_in_the_past_tense(kind: type[k.Event]) -> None:
    assert re.search(r"(ed|Set|Lost|Left|Long)$", kind.__name__)
