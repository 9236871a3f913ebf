"""What one message on the log may hold: a kind by itself, or a `Round` of the master's facts."""

from __future__ import annotations

from typing import Annotated, ClassVar, get_args

import msgspec

from events.fields import FreeText, Own, holds
from events.kinds.agents import (
    AppCheckpointed,
    AppProgressed,
    AppResizeRequested,
    ContainerDelayed,
    ContainerExited,
    ContainersPrepared,
    ContainerStarted,
    EpochCompleted,
    MembershipChanged,
    NodeJoined,
    NodeLeft,
    NodeReported,
    ProgressLinesSkipped,
)
from events.kinds.base import Event, Kind
from events.kinds.clients import (
    AppCancelRequested,
    AppSubmitted,
    AppUpdated,
    NodeDrainRequested,
    PolicyChanged,
    SealRequested,
)
from events.kinds.gates import OfGates
from events.kinds.identities import OfIdentities
from events.kinds.master import MasterFact
from events.kinds.notes import AppNoted
from events.kinds.operators import (
    AppRetryRequested,
    NodeForgetRequested,
    NodeTrustRequested,
    SchedulingPaused,
    SchedulingResumed,
)
from events.kinds.revisions import Steering
from events.kinds.rotation import OfRotation
from events.kinds.sessions import OfSessions
from events.kinds.webhooks import OfWebhooks
from events.limits import SIGNATURE_DIGITS, Number, Sequence


class Unreadable(Event, frozen=True, tag="Unreadable"):
    """Represents a record that cannot be decoded: the fold skips and counts it. Never published."""

    KIND: ClassVar[Kind] = Kind(writers=(), rule="round", on="cluster")

    subject: Own
    reason: FreeText


class Unknown(Event, frozen=True, tag="Unknown"):
    """Represents a kind, or a version of one, that this build does not know. Never published."""

    KIND: ClassVar[Kind] = Kind(writers=(), rule="round", on="cluster")

    subject: Own
    name: Own


class Round(Event, frozen=True):
    """Everything that the master publishes at once: one message, stored completely or not at all. A fact's position
    is `seq.index`."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="apps", shown=True)

    epoch: Number
    basis: Sequence
    """The sequence up to which the log was folded when this was decided."""
    allocated: bool
    """Whether the allocation was recomputed (after the quiet time), so that an audit asks the same question."""
    events: list[MasterFact | Unknown]
    """`Unknown` stands in for a fact that this build does not know, so that positions stay the same."""
    core: Number = 0
    """Version of the core that decided it (`dorm.core.state.SCHEMA`); an audit does not repeat decisions of another one."""
    previous: Sequence = 0
    """Sequence of the previous record on the rounds' subject, in a signed round."""
    signature: Annotated[str, msgspec.Meta(max_length=SIGNATURE_DIGITS), holds("own")] = ""
    """Signature by one of the masters' keys (`events.chain`), if the cluster names them
    (`TrustEnabled.masters`)."""


Published = (
    AppSubmitted
    | AppUpdated
    | AppCancelRequested
    | AppNoted
    | AppRetryRequested
    | OfGates
    | Steering
    | NodeDrainRequested
    | NodeForgetRequested
    | NodeTrustRequested
    | PolicyChanged
    | SealRequested
    | OfRotation
    | SchedulingPaused
    | SchedulingResumed
    | OfWebhooks
    | OfIdentities
    | NodeJoined
    | NodeReported
    | NodeLeft
    | ContainersPrepared
    | ContainerDelayed
    | ContainerStarted
    | ContainerExited
    | AppCheckpointed
    | AppProgressed
    | ProgressLinesSkipped
    | AppResizeRequested
    | MembershipChanged
    | EpochCompleted
    | OfSessions
    | Round
)
"""The events that one message on the log may hold."""

EVENTS: tuple[type[Event], ...] = (*(kind for kind in get_args(Published) if kind is not Round), *get_args(MasterFact))
"""Every kind of event, in records of its own and in rounds; a `Round` is an envelope."""
