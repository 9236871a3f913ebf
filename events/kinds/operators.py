"""Requests of operators about a cluster and its nodes (except drains and settings), and of owners about an app."""

from __future__ import annotations

from typing import ClassVar

from events.fields import AppName, FreeText, NodeId
from events.kinds.base import Event, Kind


class NodeForgetRequested(Event, frozen=True):
    """Forget a node that has left or whose lease has ended: it is no longer listed, drained or expected. Its records
    stay, and if its agent comes back, it joins as a new node."""

    KIND: ClassVar[Kind] = Kind(writers=("operator",), rule="operates", on="node", shown=True, lists=("news", "nodes"))

    node: NodeId
    reason: FreeText = ""


class NodeTrustRequested(Event, frozen=True):
    """A suspect node takes new containers again, and the failures there are forgotten."""

    KIND: ClassVar[Kind] = Kind(writers=("operator",), rule="operates", on="node", shown=True, lists=("news", "nodes"))

    node: NodeId
    reason: FreeText = ""


class SchedulingPaused(Event, frozen=True):
    """Make no new decisions until `SchedulingResumed`. Submissions are accepted, earlier decisions are carried out,
    and apps that end release their room."""

    KIND: ClassVar[Kind] = Kind(writers=("operator",), rule="operates", on="cluster", shown=True, lists=("news",))

    reason: FreeText = ""


class SchedulingResumed(Event, frozen=True):
    """Resume decisions."""

    KIND: ClassVar[Kind] = Kind(writers=("operator",), rule="operates", on="cluster", shown=True, lists=("news",))

    reason: FreeText = ""


class AppRetryRequested(Event, frozen=True):
    """Retry an app now that pauses after a failure. Its failures still count."""

    KIND: ClassVar[Kind] = Kind(
        writers=("user",), rule="changes_app", on="app", by_name=True, shown=True, lists=("news",)
    )

    app: AppName
