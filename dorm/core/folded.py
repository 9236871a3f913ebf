"""What became of a record in the fold, what it touched, and who watches it.

    folded = evolve(state, record)
    folded.event                       the record's event, as it counts
    folded.outcome                     what became of it
    folded.apps, folded.nodes          ids of those that it touched
    folded.everything                  whether any app and any node may differ

**Outcomes.**

    applied      it changed the state, or is of a kind that never does
    ignored      it repeats something, or concerns nothing that exists, or its sender may not say so; counted
    forbidden    its author may not publish it (`dorm.core.authority`); it changes nothing but the note of that,
                 with code and reason (`dorm.core.identities.refusal_at`), and the master reports it
    refused      it asks for something harmful or impossible; the state keeps the reason (`State.refused`, `Node.refused`)
    void         a round of a master that no longer led, or that did not know the previous round, or that no key of the
                 cluster's masters signed; counted
    unknown      of a kind that this build does not know; counted
    unreadable   counted; an unreadable submission is still answered

**Effects.**  Most records touch what they name, and a few much more: an operator's word about a node voids plans of any
app, an app that ends opens the gates of others, and an edit may change its whole group.  The handler of a kind knows that,
so each returns an `Effect`; for a round there is one for each fact, and one for what follows from the round as a whole.
Readers of a fold (the dashboard, usage, timelines, stories, the nodes' parts) ask for it, and guess nothing from kinds.  An
effect may name too much, never too little: `tests/core/test_changed.py` compares whole states before and after each record
of random histories.

Most records are reports of agents, so their effects are shared: a report costs no more than the one small object that
`evolve` returns, and ids are put together only for those who ask.

Not covered is what only decisions read of a node: the evidence about failures there (`Node.failed`, `proven_at`) and
its cursor of ports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from events.kinds import Event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm.core.state import App, State
    from events.log.records import Record

Outcome = Literal["applied", "ignored", "forbidden", "refused", "void", "unknown", "unreadable"]


class Effect(msgspec.Struct, frozen=True, gc=False):
    """What one record, or one fact of a round, did."""

    outcome: Outcome = "applied"
    app: bool = False
    """Whether it touched the app that its event names by id."""
    node: bool = False
    """Whether it touched the node that its event names."""
    apps: tuple[str, ...] = ()
    """Ids of the other apps that it touched."""
    nodes: tuple[str, ...] = ()
    """Ids of the other nodes that it touched."""
    everything: bool = False
    """Whether any app and any node may differ."""
    reasons: bool = False
    """Whether it says for any app why it waits (`App.waiting`, `retry_at`, `room_taken`)."""
    parts: Literal["", "touched", "all"] = ""
    """Nodes whose parts may differ (`dorm.core.parts`): those that it touched and those with containers of the apps
    that it touched, or all."""
    facts: tuple[Effect, ...] = ()
    """Effects of a round's facts, in their order."""

    def apps_of(self, event: Any) -> tuple[str, ...]:
        """Return the ids of the apps that the event touched, without those of its facts."""
        return (event.app, *self.apps) if self.app else self.apps

    def nodes_of(self, event: Any) -> tuple[str, ...]:
        """Return the ids of the nodes that the event touched, without those of its facts."""
        return (event.node, *self.nodes) if self.node and event.node else self.nodes


APPLIED = Effect()
"""Effect that touches neither apps nor nodes."""
IGNORED = Effect("ignored")
FORBIDDEN = Effect("forbidden")
REFUSED = Effect("refused")
VOID = Effect("void")
UNKNOWN = Effect("unknown")
UNREADABLE = Effect("unreadable")
APP = Effect(app=True)
"""Effect on the app that the event names, which no agent has to know."""
APP_PARTS = Effect(app=True, parts="touched")
"""Effect on the app that the event names, which its agents have to know."""
NODE = Effect(node=True, everything=True)
"""Effect on the node that the event names, and on plans of any app."""
NODE_PARTS = Effect(node=True, everything=True, parts="touched")
"""The same effect, which the node's agent has to know."""
EVERYTHING = Effect(everything=True)


class Folded(msgspec.Struct, frozen=True, gc=False):
    """What the fold of one record did."""

    event: Event
    """Event of the record, as it counts: by the author that the record's subject names."""
    effect: Effect

    @property
    def outcome(self) -> Outcome:
        return self.effect.outcome

    @property
    def counts(self) -> bool:
        """Whether its author may publish it and this build can read it."""
        return self.effect.outcome in ("applied", "ignored", "refused")

    @property
    def apps(self) -> tuple[str, ...]:
        """Ids of the apps that it touched, in the order in which the record names them."""
        effect = self.effect
        if not effect.facts:
            return effect.apps_of(self.event)
        return tuple(dict.fromkeys(app for event, part in self.steps() for app in part.apps_of(event)))

    @property
    def nodes(self) -> tuple[str, ...]:
        """Ids of the nodes that it touched."""
        effect = self.effect
        if not effect.facts:
            return effect.nodes_of(self.event)
        return tuple(dict.fromkeys(node for event, part in self.steps() for node in part.nodes_of(event)))

    @property
    def everything(self) -> bool:
        """Whether any app and any node may differ; `apps` and `nodes` are then those that the record names."""
        effect = self.effect
        return effect.everything or any(fact.everything for fact in effect.facts)

    @property
    def reasons(self) -> bool:
        """Whether a decision says for any app why it waits (`App.waiting`, `retry_at`, `room_taken`)."""
        return any(fact.reasons for fact in self.effect.facts)

    @property
    def touched(self) -> bool:
        """Whether any app or node may differ."""
        return any(
            effect.app or effect.node or effect.everything or effect.reasons or effect.apps or effect.nodes
            for _, effect in self.steps()
        )

    def steps(self) -> Iterator[tuple[Any, Effect]]:
        """Yield the facts of a round with their effects, in order, then the record's event with what it did as a whole."""
        event: Any = self.event
        if self.effect.facts:
            yield from zip(event.events, self.effect.facts, strict=True)
        yield event, self.effect


class Observer(Protocol):
    """Follows a fold: an explanation, a story, a picture, measures."""

    def see(self, state: State, record: Record, folded: Folded) -> None:
        """Follow one record after it was folded into `state`."""


def ignored(state: State) -> Effect:
    """Count a record, or a fact of a round, as ignored."""
    state.counters.ignored += 1
    return IGNORED


def touching(app: App) -> Effect:
    """Return the effect of a request that changed one app, which it may name by its name."""
    return Effect(apps=(app.id,))


def concerns_no_state(state: State, event: object, record: Record) -> Effect:
    """Heartbeats and requests for a seal are for the master's shell, webhooks for the process that delivers them,
    sessions for those who look up who was where."""
    return APPLIED
