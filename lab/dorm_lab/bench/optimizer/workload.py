"""Sequences of allocation problems as an ML cluster poses them: apps come and end one by one, sometimes a node is lost.

A `World` simulates a cluster at the policy's level: no master, no log, no processes, only problems and answers.  Each event
poses the next problem, in which the apps are where the last answer put them:

    world = World(apps=30, nodes=20, shapes=3, seed=7)
    for _ in range(100):
        problem = world.next_problem()
        world.apply(policy("dorm").allocate(problem, {}))

Choices, and why:

* The first event is the cold start: all apps at once, nothing runs.  From then on the number of apps hovers around `apps`.
* Up to three shapes are a usual mix: 16 cores and 64 GiB, 32 cores and 128 GiB, 32 cores and 256 GiB and 8 GPUs, in the
  ratio 5 : 3 : 2.  With more, all are random (8 to 64 cores, 2 to 8 GiB for each, every third with GPUs), equally many.
* A container has 1 to 8 cores and 1 to 8 GiB for each; in a quarter of the apps (if there are GPUs) also 1 to 4 GPUs.
  n_min is 1 to 4, seldom 8; weights are 1, 2 and 4.
* n_max is 2 to 8 times n_min, and all of these are scaled by one factor, so that the apps of the cold start would use 1.5 to
  2.5 times (drawn by seed) the cluster's cores at n_max, and those with GPUs as many times its GPUs.  So there is contention
  at every size; the n_min of all take 5 to 75 % of the cores, more on small clusters than on large ones.
* Events are 60 s apart: longer than nearly all adjustments, so no app is pinned.  Three in five apps have a measured cost of
  an adjustment, 2 to 120 s.

Randomness comes from the seed alone.  Arrivals and lost nodes do not depend on the answers; an app that ends is drawn among
those that run, so that does.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from dorm.bench import BenchError
from dorm.policies.problem import AppDemand, NodeRoom, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.policies.problem import Allocation

EVENT_S = 60.0
"""Between two events."""

GIB = 2**30
CORE = 1000
USUAL_SHAPES: tuple[dict[str, int], ...] = (
    {"cpu": 16 * CORE, "memory": 64 * GIB},
    {"cpu": 32 * CORE, "memory": 128 * GIB},
    {"cpu": 32 * CORE, "memory": 256 * GIB, "gpu": 8},
)
USUAL_RATIO = (5, 3, 2)
MOST_SHAPES = 1000
CONTENTION = (1.5, 2.5)
STRETCH = (2.0, 8.0)
N_MIN = (1,) * 6 + (2,) * 9 + (3,) * 5 + (4,) * 4 + (8,)
GPU_N_MIN = (1, 1, 1, 2, 2, 3)
GPU_APPS = 0.25
PLACEMENTS: tuple[Literal["", "spread", "pack"], ...] = ("", "", "", "spread", "pack")
NODE_LOSS, NODE_RETURN = 0.03, 0.15
"""Probability of each event to be one (a return only while a node is away)."""
LOST_AT_MOST = 0.1
"""Part of the nodes that are away at once; always at least one may be."""

Kind = Literal["cold start", "arrival", "completion", "node lost", "node back"]


class Event(NamedTuple):
    """What happened to pose the next problem."""

    kind: Kind
    subject: str
    """The app or the node; '' for the cold start."""


class World:
    """One cluster and its apps.  `next_problem` plays an event, `apply` applies the answer.

    `gpus`: whether some shapes and apps have GPUs; `labels`: whether nodes have labels, and some apps requirements, wishes for
    placement, and gangs.  Raises `BenchError` for sizes below 1, and for more than MOST_SHAPES shapes.
    """

    def __init__(
        self, *, apps: int, nodes: int, shapes: int, seed: int, gpus: bool = True, labels: bool = False
    ) -> None:
        if min(apps, nodes, shapes) < 1:
            raise BenchError("a cluster needs at least one app, one node and one shape", code="bench.too_small")
        if shapes > MOST_SHAPES:
            raise BenchError(f"there are no more than {MOST_SHAPES} different shapes", code="bench.too_many_shapes")
        # Independent generators, so another number of nodes does not change the apps.
        self._cluster_chance = random.Random(f"{seed}/cluster")
        self._app_chance = random.Random(f"{seed}/apps")
        self._event_chance = random.Random(f"{seed}/events")
        self._size = apps
        self._labels = labels
        self.event = Event("cold start", "")
        """The event that posed the last problem."""
        self.number = 0
        """Number of that event; 0 before the first, 1 for the cold start."""
        self._nodes = self._make_nodes(nodes, shapes, gpus)
        self._away: list[NodeRoom] = []
        self._has_gpus = any("gpu" in node.capacity for node in self._nodes.values())
        self._gpu_types = sorted(
            {node.labels["gpu_type"] for node in self._nodes.values() if "gpu_type" in node.labels}
        )
        self._made = 0
        self._apps: dict[str, AppDemand] = {}
        self._waits_since: dict[str, float] = {}
        drafts = [self._draft() for _ in range(apps)]
        self._stretch = self._fit(drafts)
        for draft in drafts:
            self._arrive(draft)

    @property
    def now(self) -> float:
        """Seconds since the cold start."""
        return max(0, self.number - 1) * EVENT_S

    def next_problem(self) -> Problem:
        """Play one event and return the problem; the first call is the cold start."""
        self.number += 1
        if self.number > 1:
            self.event = self._happen()
        return self.problem()

    def problem(self) -> Problem:
        """Return the present problem, with the apps in order of arrival."""
        apps = tuple(
            msgspec.structs.replace(app, waited_s=self.now - self._waits_since[name])
            if name in self._waits_since
            else app
            for name, app in self._apps.items()
        )
        return Problem(nodes=tuple(self._nodes.values()), apps=apps)

    def apply(self, allocation: Allocation) -> None:
        """Apply an answer.  An app that it stops waits from now on."""
        self.place(allocation.counts)

    def place(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Like `apply`, for containers by app and node.  Raises `KeyError` for an app that is left out."""
        for name, app in self._apps.items():
            given = dict(counts[name])
            if given == app.current:
                continue
            self._apps[name] = msgspec.structs.replace(app, current=given)
            if given:
                self._waits_since.pop(name, None)
            else:
                self._waits_since[name] = self.now

    # The cluster

    def _make_nodes(self, count: int, shapes: int, gpus: bool) -> dict[str, NodeRoom]:
        chance = self._cluster_chance
        if shapes <= len(USUAL_SHAPES):
            kinds = [dict(shape) for shape in USUAL_SHAPES[:shapes]]
            ratio = USUAL_RATIO[:shapes]
        else:
            kinds = _random_shapes(chance, shapes, gpus)
            ratio = (1,) * shapes
        if not gpus:
            kinds = [{kind: amount for kind, amount in shape.items() if kind != "gpu"} for shape in kinds]
        which = _shared_out(count, ratio)
        chance.shuffle(which)
        types = [chance.choice(("a100", "h100")) if "gpu" in shape else "" for shape in kinds]
        nodes = {}
        for index, shape in enumerate(which):
            name = f"n{index + 1:05d}"
            labels = {}
            if self._labels:
                labels = {"zone": chance.choice("abc")} | ({"gpu_type": types[shape]} if types[shape] else {})
            nodes[name] = NodeRoom(name, kinds[shape], labels)
        return nodes

    def _total(self, kind: str) -> int:
        return sum(node.capacity.get(kind, 0) for node in self._nodes.values())

    # Apps

    def _draft(self) -> AppDemand:
        """Return a new app with its n_max not scaled yet: in thousandths, so nothing is rounded twice."""
        chance = self._app_chance
        self._made += 1
        needs_gpus = chance.random() < GPU_APPS and self._has_gpus
        gpus = chance.choice((1, 1, 1, 2, 2, 4))
        cores = min(8, gpus * chance.randint(1, 4)) if needs_gpus else chance.choice((1, 1, 2, 2, 3, 4, 4, 6, 8))
        memory = cores * chance.choice((1, 2, 2, 4, 4, 6, 8)) * GIB
        n_min = chance.choice(GPU_N_MIN if needs_gpus else N_MIN)
        gang = 2 if self._labels and chance.random() < 0.1 else 1
        require, placement = "", chance.choice(PLACEMENTS) if self._labels else PLACEMENTS[0]
        if self._labels and chance.random() < 0.2:
            types = [f'gpu_type == "{kind}"' for kind in self._gpu_types]
            require = chance.choice(types) if needs_gpus and types else 'zone != "c"'
        measured = chance.random() < 0.6
        adjust_s = round(2.0 * 60.0 ** chance.random(), 1)
        return AppDemand(
            # Random first, so the order of ids is not the order of arrival.
            id=f"{chance.getrandbits(24):06x}-{self._made}",
            demand={"cpu": cores * CORE, "memory": memory} | ({"gpu": gpus} if needs_gpus else {}),
            weight=chance.choice((1.0, 1.0, 2.0, 4.0)),
            n_min=n_min * gang,
            n_max=round(1000 * n_min * gang * chance.uniform(*STRETCH)),
            require=require,
            placement=placement,
            gang=gang,
            adjust_s=adjust_s if measured else None,
        )

    def _fit(self, drafts: list[AppDemand]) -> dict[bool, float]:
        """Return the factors of n_max, for apps without and with GPUs: the drawn contention, for this cluster."""
        contention = self._cluster_chance.uniform(*CONTENTION)
        gpu = [app for app in drafts if "gpu" in app.demand]
        rest = [app for app in drafts if "gpu" not in app.demand]
        of_gpus = contention * self._total("gpu") / _wanted(gpu, "gpu") if gpu else 1.0
        cores = contention * self._total("cpu") - of_gpus * _wanted(gpu, "cpu")
        return {True: of_gpus, False: max(0.1, cores / _wanted(rest, "cpu")) if rest else 1.0}

    def _arrive(self, draft: AppDemand) -> None:
        most = round(draft.n_max / 1000 * self._stretch["gpu" in draft.demand])
        n_max = max(draft.n_min, most - most % draft.gang)
        self._apps[draft.id] = msgspec.structs.replace(draft, n_max=n_max)
        self._waits_since[draft.id] = self.now

    # Events

    def _happen(self) -> Event:
        chance = self._event_chance
        # Always the same number of draws, so later events do not depend on what was possible here.
        node, population, which = chance.random(), chance.random(), chance.random()
        if self._away and node < NODE_RETURN:
            back = self._away.pop(0)
            self._nodes = dict(sorted([*self._nodes.items(), (back.id, back)]))
            return Event("node back", back.id)
        at_most = max(1, int(LOST_AT_MOST * (len(self._nodes) + len(self._away))))
        if node > 1 - NODE_LOSS and len(self._away) < at_most and len(self._nodes) > 1:
            lost = list(self._nodes)[int(which * len(self._nodes))]
            self._away.append(self._nodes.pop(lost))
            return Event("node lost", lost)
        running = [name for name, app in self._apps.items() if app.current]
        grows = 0.5 + (self._size - len(self._apps)) / max(4.0, 0.2 * self._size)
        if population < grows or not running:
            self._arrive(self._draft())
            return Event("arrival", next(reversed(self._apps)))
        ended = running[int(which * len(running))]
        del self._apps[ended]
        return Event("completion", ended)


def _random_shapes(chance: random.Random, count: int, gpus: bool) -> list[dict[str, int]]:
    """Return distinct shapes, of more than a thousand possible ones."""
    shapes: list[dict[str, int]] = []
    while len(shapes) < count:
        cores = chance.choice((8, 12, 16, 24, 32, 48, 64))
        shape = {"cpu": cores * CORE, "memory": chance.randint(2 * cores, 8 * cores) * GIB}
        number = chance.choice((2, 4, 8))
        if gpus and len(shapes) % 3 == 2:
            shape["gpu"] = number
        if shape not in shapes:
            shapes.append(shape)
    return shapes


def _shared_out(count: int, ratio: tuple[int, ...]) -> list[int]:
    """Return `count` indices into `ratio`, as close to it as possible (d'Hondt), each at least once if there are enough."""
    given = [1 if count >= len(ratio) else 0 for _ in ratio]
    for _ in range(count - sum(given)):
        best = max(range(len(ratio)), key=lambda index: (ratio[index] / (given[index] + 1), -index))
        given[best] += 1
    return [index for index, number in enumerate(given) for _ in range(number)]


def _wanted(drafts: list[AppDemand], kind: str) -> float:
    """Return what drafts would use at n_max, not scaled."""
    return sum(app.n_max / 1000 * app.demand[kind] for app in drafts)
