"""Profiles made from a model whose parameters are known, in the tables' own format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm_lab.workloads.pollux import StepTime

if TYPE_CHECKING:
    from pathlib import Path

MODEL = StepTime(grad=(0.1, 0.02), local=(0.05, 0.004), node=(0.2, 0.01), gamma=1.5, batch=64, most_local=32)
LOCALS = (8, 12, 16, 24, 32)
PLACEMENTS = ("1", "2", "3", "4", "11", "22", "44", "112", "13")
SPREADS = ((3, 3), (3, 12), (4, 4), (4, 16))
"""Nodes and GPUs of `scalability.csv`."""
SIZES = (16, 64)
"""Batch sizes of which epochs were measured."""


def step_s(model: StepTime, nodes: int, gpus: int, local: int) -> tuple[float, float]:
    """Of one pass with so many samples on each GPU: all of it, and what it waits for the others."""
    grad = model.grad[0] + model.grad[1] * local
    alpha, beta = model.node if nodes > 1 else model.local
    sync = alpha + beta * (gpus - 2) if gpus > 1 else 0.0
    whole = (grad**model.gamma + sync**model.gamma) ** (1 / model.gamma)
    return whole, whole - grad


def write(folder: Path, *, epochs: int = 3) -> Path:
    """One application, in whose every epoch the gradient's variance and squared norm are 1."""
    folder.mkdir(parents=True)
    placed = ["placement,local_bsz,step_time,sync_time"]
    for name in PLACEMENTS:
        gpus = sum(map(int, name))
        placed += [f"{name},{local},{','.join(map(repr, step_s(MODEL, len(name), gpus, local)))}" for local in LOCALS]
    (folder / "placements.csv").write_text("\n".join(placed) + "\n")
    spread = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    for nodes, gpus in SPREADS:
        spread += [
            f"{nodes},{gpus},{local},{','.join(map(repr, step_s(MODEL, nodes, gpus, local)))}" for local in LOCALS
        ]
    (folder / "scalability.csv").write_text("\n".join(spread) + "\n")
    for size in SIZES:
        rows = ["progress,iteration,metric,grad_sqr,grad_var"]
        rows += [f"{100.0 * (epoch + 1)},{50 * (epoch + 1)},0.5,1.0,1.0" for epoch in range(epochs)]
        (folder / f"validation-{size}.csv").write_text("\n".join(rows) + "\n")
    return folder
