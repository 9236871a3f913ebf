"""Simulates a cluster in virtual time: the same core that runs live, with simulated agents and apps around it.

    simulation        one run: simulated clients, agents and apps around the real core, writing an ordinary log
    scenario          everything that a run depends on
    agenda            virtual time: acts in one order
    simulated_master  when rounds are decided
    agents            how agents and apps react;  simulated_containers: the containers and their work
    live_resizing     apps that are resized while they work
    timings           how long the phases of a start and of an adjustment take
    workload          apps to come and nodes;  speed: an app's speed by its containers
    contenders        policies to compare: their text and parameters
    measures          the outcome of a run;  outcome: as plain data
    forks/            a real log continued: what-if, backtests, when a waiting app will start

Start with `simulation`.  A simulation appends real records by the real codec, folds them with `evolve`, and decides with
`decide`.  So every tool that reads logs reads a simulated one, and an audit verifies its decisions.  Only the outside is
simulated: that a container has started, that a checkpoint is written, that the work is done.  A run depends on its scenario
alone: one seed, one log, byte for byte.

    SimulationError    a workload or scenario that cannot be simulated
    └── WhatIfError    a moment from which a log cannot be continued
"""

from __future__ import annotations

from replay import ReplayError


class SimulationError(ReplayError):
    """A workload or a scenario that cannot be simulated; the message is one line for people."""

    code = "simulation.failed"
