"""The speed of a data-parallel training job with a fixed batch size: Pollux's model of step times, and measured ones.

A unit of work is one step with the job's batch size.  `Profiled` holds step times as measured, `StepTime` the model that
Pollux fits to such measurements (OSDI 2021, §3.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from dorm_lab.workloads.profiles import MOST_NODES, Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dorm_lab.workloads.profiles import Profile

    Floats = NDArray[np.float64]

GPUS_PER_NODE = 4
"""GPUs per node of the testbed on which the profiles were taken (Pollux, §5.1)."""
MOST_GPUS = 64
"""All GPUs of the testbed."""


class StepTime(msgspec.Struct, frozen=True, tag="step-time"):
    """Pollux's model (OSDI 2021, §3.2), with a fixed batch size.

    T_grad = α_grad + β_grad · m                           m samples on each GPU, in one pass
    T_sync = 0 for K = 1 GPU, else α + β · (K - 2), with other α and β on one node than across nodes
    T_iter = s · T_grad + (T_grad^γ + T_sync^γ)^(1/γ)      s passes before the one that synchronizes

    γ = 1 means no overlap of computing and synchronizing, γ = 10 nearly complete overlap.
    """

    grad: tuple[float, float]
    """α_grad (s) and β_grad (s per sample)."""
    local: tuple[float, float]
    """α and β (s, s per GPU) on one node."""
    node: tuple[float, float]
    """The same across nodes."""
    gamma: float
    batch: int
    """Samples in a step, over all GPUs."""
    most_local: int = 1_000_000
    """Samples that fit one GPU in one pass."""

    def rate(self, placement: Sequence[int]) -> float:
        gpus = sum(placement)
        if not gpus:
            return 0.0
        local = -(-self.batch // gpus)
        passes = -(-local // self.most_local)
        alpha, beta = self.node if len(placement) > 1 else self.local
        grad = self.grad[0] + self.grad[1] * -(-local // passes)
        sync = alpha + beta * (gpus - 2) if gpus > 1 else 0.0
        return float(1 / ((passes - 1) * grad + (grad**self.gamma + sync**self.gamma) ** (1 / self.gamma)))


class Profiled(msgspec.Struct, frozen=True, tag="profiled"):
    """Steps per second as measured: by placement if it was measured, else by nodes and GPUs."""

    placed: dict[str, float]
    """Speeds by placement: each node's GPUs as one digit, in the least of the orders that are rotations of each other, since a
    ring of workers has no start."""
    spread: tuple[tuple[float, ...], ...]
    """Rates for 1, 2, … nodes, and for 1, 2, … GPUs on them."""

    def rate(self, placement: Sequence[int]) -> float:
        if not placement:
            return 0.0
        known = self.placed.get(rotated(placement))
        if known is not None:
            return known
        row = self.spread[min(len(placement), len(self.spread)) - 1]
        return row[min(sum(placement), len(row)) - 1]


def rotated(placement: Sequence[int]) -> str:
    """Return a placement's name in the tables; '' if a node has more GPUs than one digit can express."""
    if max(placement) > 9:
        return ""
    name = "".join(map(str, placement))
    return min(name[i:] + name[:i] for i in range(len(name)))


def packed(gpus: int) -> tuple[int, ...]:
    """Return a placement of this many GPUs on as few nodes as possible."""
    whole, rest = divmod(gpus, GPUS_PER_NODE)
    return (GPUS_PER_NODE,) * whole + ((rest,) if rest else ())


def profiled(profile: Profile, batch: int) -> Profiled:
    """Return the speed of a job with this batch size, up to as many GPUs as were measured.

    If GPUs get a batch of whole samples that is not the job's own, steps count by the work in them.  Points outside all
    measurements are taken from `fitted`."""
    most = min(MOST_GPUS, profile.most_gpus(batch))
    batches = {gpus: Batch(batch, gpus, profile) for gpus in range(1, most + 1)}
    worth = {size: profile.iterations(batch) / profile.iterations(size) for size in {b.size for b in batches.values()}}
    placed = {}
    for name in profile.measured:
        gpus = sum(map(int, name))
        if gpus in batches:
            placed[name] = worth[batches[gpus].size] / profile.step_s(name, batches[gpus])
    model: StepTime | None = None
    spread = []
    for nodes in range(1, MOST_NODES + 1):
        times = profile.step_between_s(nodes, {n: b for n, b in batches.items() if nodes <= n <= GPUS_PER_NODE * nodes})
        rates = []
        for gpus in batches:
            if gpus in times:
                rates.append(worth[batches[gpus].size] / times[gpus])
                continue
            model = model or fitted(profile, batch)
            rates.append(model.rate(_on(min(nodes, gpus), gpus)))
        spread.append(tuple(rates))
    return Profiled(placed=placed, spread=tuple(spread))


def _on(nodes: int, gpus: int) -> tuple[int, ...]:
    """Return any placement on this many nodes; the model needs no more."""
    return (gpus - nodes + 1,) + (1,) * (nodes - 1)


def curve(speed: Profiled | StepTime, most: int) -> list[tuple[int, float]]:
    """Return the speeds that an owner can declare: GPUs and steps per second on as few nodes as possible, from 1 to
    `most`."""
    return [(gpus, round(speed.rate(packed(gpus)), 9)) for gpus in range(1, most + 1)]


def fitted(profile: Profile, batch: int) -> StepTime:
    """Fit the model's parameters by least squares of the logarithms of all measured step and compute times, as Pollux does
    (§4.1, root mean squared logarithmic error)."""
    from scipy.optimize import least_squares  # Slow to import, and most workloads need none.

    nodes, gpus, local, step, sync = profile.points.T
    compute = np.maximum(step - sync, 1e-6)

    def times(parameters: Floats) -> tuple[Floats, Floats]:
        grad_a, grad_b, local_a, local_b, node_a, node_b, gamma = parameters
        grad = grad_a + grad_b * local
        alpha, beta = np.where(nodes > 1, node_a, local_a), np.where(nodes > 1, node_b, local_b)
        waits = np.where(gpus > 1, alpha + beta * np.maximum(gpus - 2, 0), 0.0)
        return grad, (grad**gamma + waits**gamma) ** (1 / gamma)

    def errors(parameters: Floats) -> Floats:
        grad, whole = times(parameters)
        return np.concatenate([np.log(grad / compute), np.log(whole / step)])

    begin = [0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.5]
    solved = least_squares(errors, begin, bounds=([1e-8] * 6 + [1.0], [np.inf] * 6 + [10.0]), x_scale=begin)
    grad_a, grad_b, local_a, local_b, node_a, node_b, gamma = (round(float(value), 9) for value in solved.x)
    return StepTime(
        (grad_a, grad_b), (local_a, local_b), (node_a, node_b), gamma, batch=batch, most_local=profile.most_local
    )
