"""The subjects of the log that an agent reads."""

from __future__ import annotations

from agents.progress.file import TOLD
from events import kinds as k
from events import subjects

_IDENTITIES = (k.TrustEnabled, k.UserAdded, k.UserRemoved, k.NodeEnrolled, k.NodeExpelled)
"""Tokens of the HTTP API are none of an agent's business."""
OF_NODE = (k.NodeJoined, k.NodeLeft, k.ContainerStarted, k.ContainerExited)


def subjects_of(cluster: str, node: str) -> list[str]:
    """Return the subjects that `Desired.fold` needs.  No two of these patterns match the same subject: only then does the
    server filter; otherwise it sends every agent the whole log."""
    return [
        subjects.rounds(cluster),
        subjects.fact_pattern(cluster, k.PolicyChanged.__name__),
        subjects.fact_pattern(cluster, k.ContainersPrepared.__name__),
        *subjects_of_identities(cluster),
        *own_subjects(cluster, node),
    ]


def own_subjects(cluster: str, node: str) -> list[str]:
    """Return the subjects of the node's own facts: all that an agent reads of the log if it follows its part."""
    own = (*OF_NODE, *TOLD)
    return [subjects.fact(cluster, kind.__name__, node) for kind in own]


def subjects_of_identities(cluster: str) -> list[str]:
    """Return the subjects that say whose signature counts."""
    return [subjects.fact_pattern(cluster, kind.__name__) for kind in _IDENTITIES]
