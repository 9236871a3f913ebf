"""The value of an app and its amount of work, for policies that admit and plan by them (`oasis`).

Utility   what its completion is worth by its time (OASiS, INFOCOM 2018, §V)
Work      epochs, chunks and mini-batches of its training (§III)
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from events.fields import holds
from events.quantities import Quantity, duration

Duration = Annotated[Quantity, msgspec.Meta(description="10s, 500ms, 2m, 1h, or a number of seconds"), holds("word")]
HOUR_S = 3600.0


class Utility(msgspec.Struct, frozen=True, omit_defaults=True):
    """Its completion `t` after its submission is worth worth / (1 + exp(decay · (t - target)))."""

    worth: Annotated[float, msgspec.Meta(ge=1e-6, le=1e9, description="its priority, in a unit that all apps share")]
    decay: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            le=1e6,
            description="how fast the value falls around the target, per hour; 0: the value is always half of `worth`",
        ),
    ] = 0.0
    target: Annotated[Duration, msgspec.Meta(description="the time by which it should be done", examples=["2h"])] = "0s"

    @property
    def decay_per_s(self) -> float:
        return self.decay / HOUR_S

    @property
    def target_s(self) -> float:
        return duration(self.target)


class Work(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of its work, as one worker's time: epochs · chunks · mini_batches · (mini_batch + exchange)."""

    mini_batch: Annotated[Duration, msgspec.Meta(description="how long one worker computes for a mini-batch")]
    chunks: Annotated[
        int,
        msgspec.Meta(ge=1, le=100_000, description="chunks of the data; no more workers than these work at once"),
    ]
    mini_batches: Annotated[int, msgspec.Meta(ge=1, le=10**9, description="mini-batches of one chunk")] = 1
    epochs: Annotated[int, msgspec.Meta(ge=1, le=10**9, description="how often all chunks are trained")] = 1
    exchange: Annotated[
        Duration,
        msgspec.Meta(
            description="how long a worker takes, for each mini-batch, to send gradients and to receive parameters"
        ),
    ] = "0s"

    @property
    def seconds(self) -> float:
        """Of one worker."""
        each = duration(self.mini_batch) + duration(self.exchange)
        return float(self.epochs) * self.chunks * self.mini_batches * each
