"""Events that a plan assumes to happen first, and errors in such assumptions."""

from __future__ import annotations

from typing import Any

import msgspec

from events import kinds as k
from events.errors import DormError
from events.spec import AppSpec, CheckedSpec


class PlanError(DormError):
    """An assumption is impossible; one line for people."""

    code = "plan.impossible"


class UnknownSetting(PlanError):
    """An unknown policy, or a parameter or value that it does not accept: wrong for every cluster."""

    code = "settings.unknown"


class NewNodes(msgspec.Struct, frozen=True):
    """A number of nodes of one shape that join."""

    count: int
    capacity: dict[str, int] = {}
    """In base units; with `like` only the differences."""
    labels: dict[str, str] = {}
    like: str = ""
    """A node to copy capacity and labels from."""


class Assumed(msgspec.Struct, frozen=True):
    """Assumptions, which happen in this order: settings, nodes that join, are removed, are drained, are used again;
    apps that end, change, and new ones."""

    settings: dict[str, Any] = {}
    """Parameters of the policy in force, and the master's times and folder by their names in the log; `policy` names another
    one (its parameters then start from its defaults)."""
    joins: tuple[NewNodes, ...] = ()
    removed: tuple[str, ...] = ()
    """Nodes that are gone permanently, as if their lease had ended."""
    drained: tuple[str, ...] = ()
    undrained: tuple[str, ...] = ()
    """Nodes whose drain ends."""
    cancelled: tuple[str, ...] = ()
    """Names or ids of apps."""
    updated: tuple[k.AppUpdated, ...] = ()
    """New bounds and weights."""
    edited: tuple[tuple[str, AppSpec], ...] = ()
    """Names or ids of apps, with the specs that they are to have."""
    restarted: tuple[str, ...] = ()
    specs: tuple[CheckedSpec, ...] = ()
