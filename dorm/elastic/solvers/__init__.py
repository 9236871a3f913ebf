"""Algorithms that use all of a member's samples at once (uni-tasks: one task a member, however much data it holds).

    cocoa    generalized linear models by CoCoA with local SDCA; its duality gap certifies the result
    scale_in   when CoCoA asks for fewer members, by the measured fall of the gap
    losses   the losses that CoCoA minimizes, with their conjugates and coordinate steps
    network  a small neural network in NumPy: mini-batch SGD and local SGD

Start with `cocoa`.
"""

from __future__ import annotations

from dorm.elastic.solvers.cocoa import Round, solve
from dorm.elastic.solvers.losses import LOSSES, Loss
from dorm.elastic.solvers.network import Network, local_sgd, minibatch_sgd

__all__ = ["LOSSES", "Loss", "Network", "Round", "local_sgd", "minibatch_sgd", "solve"]
