"""Keeps the last fifth of the labelled data away from training.  They are other writers' digits, so accuracy there is
what one would get in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from compose.apps.arrays import Labels, Matrix


class Labelled(NamedTuple):
    """Rows and their labels."""

    inputs: Matrix
    labels: Labels


def split(inputs: Matrix, labels: Labels) -> tuple[Labelled, Labelled]:
    """Rows to train on and rows to test on, a multiple of 24 of the former so that shards come out even."""
    cut = len(labels) * 4 // 5 // 24 * 24
    return Labelled(inputs[:cut], labels[:cut]), Labelled(inputs[cut:], labels[cut:])
