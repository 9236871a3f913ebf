"""The faults and their times: a schedule that is drawn from the seed beforehand, so that shrinking can leave items out.

Each fault has its own place in the schedule and its own random numbers, so a history without one of them has the others
unchanged.
"""

from __future__ import annotations

import random
from typing import Final

import msgspec


class Fault(msgspec.Struct, frozen=True):
    """`target` names a host, a node or nothing; `for_s` is its duration, 0 for a momentary fault."""

    number: int
    at: float
    kind: str
    target: str = ""
    for_s: float = 0.0
    argument: float = 0.0
    """Its meaning depends on the kind: steps until a crash, seconds of a clock's step, a number to choose by."""

    def __str__(self) -> str:
        lasts = f" for {self.for_s} s" if self.for_s else ""
        return f"#{self.number} at {self.at} s: {self.kind} {self.target}{lasts} ({self.argument:g})"


MASTER: Final = "master"
NODE: Final = "node"
CLIENT: Final = "client"
NOBODY: Final = ""

KINDS: Final[dict[str, tuple[str, float]]] = {
    # by kind: what it hits, and how often it is drawn relative to the others
    "master killed": (MASTER, 3),
    "master crashes": (MASTER, 3),
    "master stopped": (MASTER, 1),
    "master paused": (MASTER, 3),
    "master cut off": (MASTER, 2),
    "master half deaf": (MASTER, 1),
    "master lags": (MASTER, 3),
    "master reconnects": (MASTER, 1),
    "master's clock steps": (MASTER, 1),
    "all masters killed": (NOBODY, 1),
    "round held back": (NOBODY, 3),
    "round forestalled": (NOBODY, 4),
    "agent killed": (NODE, 3),
    "agent crashes": (NODE, 5),
    "agent dead for long": (NODE, 2),
    "agent stopped": (NODE, 1),
    "agent paused": (NODE, 2),
    "node cut off": (NODE, 4),
    "node half deaf": (NODE, 1),
    "node lags": (NODE, 1),
    "node reconnects": (NODE, 1),
    "node's clock steps": (NODE, 1),
    "machine loses power": (NODE, 3),
    "engine down": (NODE, 2),
    "engine killed with its containers": (NODE, 1),
    "engine slow": (NODE, 2),
    "disk of a node full": (NODE, 1),
    "image missing": (NODE, 0.5),
    "port taken": (NODE, 1),
    "container removed by hand": (NODE, 1),
    "container killed by hand": (NODE, 1),
    "server killed": (NOBODY, 3),
    "server paused": (NOBODY, 2),
    "server's disk full": (NOBODY, 1),
    "server's clock steps": (NOBODY, 1),
    "client killed": (CLIENT, 2),
    "client cut off": (CLIENT, 2),
    "submission repeated": (NOBODY, 2),
    "records repeated": (NOBODY, 2),
    "nonsense": (NOBODY, 3),
    "drained": (NODE, 2),
    "policy changed": (NOBODY, 1),
    "lease changed": (NOBODY, 1),
    "app cancelled": (NOBODY, 1),
    "app updated": (NOBODY, 2),
}

LATER_KINDS: Final[dict[str, tuple[str, float]]] = {
    # by kind: what it hits, and the fraction of seeds in which it happens
    "all start before the server": (NOBODY, 0.15),
    "message id taken": (NOBODY, 0.2),
    "large submissions": (NOBODY, 0.1),
    "rounds of absurd numbers": (NOBODY, 0.15),
    "app of many containers": (NOBODY, 0.15),
    "progress flooded": (NODE, 0.15),
    "node replaced": (NODE, 0.08),
    "node's folder removed": (NODE, 0.06),
    "settings that would destroy": (NOBODY, 0.2),
    "checkpoint folder not mounted": (NODE, 0.25),
    "crash loop": (NOBODY, 0.2),
    "cluster restarted": (NOBODY, 0.08),
    "node impersonated": (NODE, 0.15),
    "agents dead before a start": (NOBODY, 0.15),
    "agent reads slowly": (NODE, 0.12),
    "scheduling paused": (NOBODY, 0.12),
    "node forgotten": (NODE, 0.15),
    "node in maintenance": (NODE, 0.1),
    "apps retried now": (NOBODY, 0.12),
    "apps held": (NOBODY, 0.15),
    "apps wait for others": (NOBODY, 0.15),
    "apps edited": (NOBODY, 0.15),
    "apps restarted": (NOBODY, 0.15),
    "log's clock leaps": (NOBODY, 0.2),
    "machine's clock leaps": (NODE, 0.1),
    "master's machine's clock leaps": (MASTER, 0.1),
    "containers can't be created": (NODE, 0.15),
}
"""Added after the seeds were first played. Each draws from its own stream, so a new kind leaves all schedules otherwise
unchanged."""

HARMLESS: Final = frozenset(
    {
        "master's clock steps",
        "node's clock steps",
        "machine's clock leaps",
        "master's machine's clock leaps",
        "server's clock steps",
        "disk of a node full",
        "image missing",
        "port taken",
        "container removed by hand",
        "container killed by hand",
        "client killed",
        "client cut off",
        "submission repeated",
        "records repeated",
        "nonsense",
        "round forestalled",
        "drained",
        "policy changed",
        "app cancelled",
        "app updated",
        "large submissions",
        "rounds of absurd numbers",
        "app of many containers",
        "progress flooded",
        "settings that would destroy",
        "crash loop",
        "node impersonated",
        "scheduling paused",
        "node forgotten",
        "apps retried now",
        "apps held",
        "apps wait for others",
        "containers can't be created",
        "apps fail early",
        "starts take long",
        "node flaps",
        "node's disk fills",
        "health program fails",
        "node trusted",
    }
)
"""None of these explains that a node is not heard, that its lease ends, or that another master leads."""

_LASTING: Final[dict[str, tuple[float, float]]] = {
    "all start before the server": (1.5, 15),
    "master paused": (0.5, 12),
    "master cut off": (0.5, 12),
    "master half deaf": (0.5, 12),
    "master lags": (0.5, 10),
    "round held back": (2.5, 12),
    "agent killed": (0.1, 3),
    "agent crashes": (0.1, 3),
    "agent dead for long": (15, 50),
    "agent stopped": (0.1, 20),
    "agent paused": (0.5, 30),
    "node cut off": (0.5, 45),
    "node half deaf": (0.5, 30),
    "node lags": (0.3, 6),
    "machine loses power": (1, 40),
    "engine down": (1, 20),
    "engine killed with its containers": (1, 10),
    "engine slow": (2, 30),
    "disk of a node full": (2, 20),
    "image missing": (2, 10),
    "port taken": (2, 20),
    "server killed": (0.2, 10),
    "server paused": (0.3, 8),
    "server's disk full": (1, 8),
    "client cut off": (0.5, 10),
    "drained": (5, 40),
    "node replaced": (2, 45),
    "node's folder removed": (0.1, 30),
    "checkpoint folder not mounted": (3, 40),
    "cluster restarted": (1, 15),
    "agents dead before a start": (20, 50),
    "agent reads slowly": (3, 25),
    "scheduling paused": (5, 40),
    "node in maintenance": (5, 60),
    "apps held": (0.5, 30),
    "apps wait for others": (0.5, 20),
    "log's clock leaps": (0.5, 25),
    "machine's clock leaps": (0.5, 25),
    "master's machine's clock leaps": (0.5, 25),
    "containers can't be created": (3, 180),
}


def draw_faults(seed: int, span_s: float, masters: list[str], nodes: list[str], clients: list[str]) -> list[Fault]:
    """Return a numbered schedule over `span_s` virtual seconds."""
    chance = random.Random(f"{seed}.faults")
    count = chance.choice([1, 3, 6, 10, 16, 24])
    # Each seed uses a few kinds, because with all kinds, many combinations would be rare.
    names = list(KINDS)
    if chance.random() < 0.6:
        names = chance.sample(names, chance.randint(2, 8))
    weights = [KINDS[name][1] for name in names]
    whole = {MASTER: masters, NODE: nodes, CLIENT: clients, NOBODY: [""]}
    targets = dict(whole)
    if chance.random() < 0.3:
        targets[NODE] = [chance.choice(nodes)]
    bursts = [chance.uniform(1, span_s) for _ in range(chance.randint(1, 3))]
    drawn = []
    for _ in range(count):
        kind = chance.choices(names, weights)[0]
        at = chance.uniform(1, span_s)
        if chance.random() < 0.4:
            at = min(span_s, max(1.0, chance.choice(bursts) + chance.uniform(0, 3)))
        shortest, longest = _LASTING.get(kind, (0.0, 0.0))
        for_s = round(shortest + (longest - shortest) * chance.random() ** 2, 2)
        drawn.append((round(at, 3), kind, chance.choice(targets[KINDS[kind][0]]), for_s, round(chance.random(), 6)))
    drawn.sort()
    for kind, (whom, part) in LATER_KINDS.items():
        drawn += _draw_later(random.Random(f"{seed}.faults.{kind}"), kind, part, span_s, whole[whom])
    return [
        Fault(number, at, kind, target, for_s, argument)
        for number, (at, kind, target, for_s, argument) in enumerate(drawn)
    ]


def _draw_later(
    chance: random.Random, kind: str, part: float, span_s: float, targets: list[str]
) -> list[tuple[float, str, str, float, float]]:
    """Draw none in most seeds, otherwise one or a few."""
    if chance.random() >= part:
        return []
    shortest, longest = _LASTING.get(kind, (0.0, 0.0))
    return [
        (
            round(chance.uniform(1, span_s), 3),
            kind,
            chance.choice(targets),
            round(shortest + (longest - shortest) * chance.random() ** 2, 2),
            round(chance.random(), 6),
        )
        for _ in range(chance.choice([1, 1, 2, 3]))
    ]
