"""Hold the last fifth of the labelled data back from training.  It holds other writers' digits, so accuracy on it
predicts accuracy in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from compose.apps.worker.arrays import Labels, Matrix


class Labelled(NamedTuple):
    """Rows and their labels."""

    inputs: Matrix
    labels: Labels


def split(inputs: Matrix, labels: Labels) -> tuple[Labelled, Labelled]:
    """Split into rows to train on and rows to test on, the former a multiple of 24 so that shards are even."""
    cut = len(labels) * 4 // 5 // 24 * 24
    return Labelled(inputs[:cut], labels[:cut]), Labelled(inputs[cut:], labels[cut:])
