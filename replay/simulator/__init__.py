"""A cluster in virtual time: the same core that runs live, with simulated agents and apps around it.

    workload    apps to come: when, with what spec, how much work
    speed       how fast an app works with so many containers, so placed
    pollux      the speed of training jobs: Pollux's step times, and as measured
    profiles    the tables that such speeds are measured in
    timings     how long the phases of an adjustment take
    fitting_timings  what they took on a log, and the timings that follow
    paper       the workload of the paper's evaluation
    workloads   workloads by the text that names one; options, what stands behind it
    parametric  made-up workloads
    traces      real ones
    telling     what owners say of their apps
    nodes       clusters: written, sized for a workload, and what fits
    draws       chance, from a seed
    scenario    workload, nodes, policy and everything else that a run depends on
    outages     when nodes fail, by chance
    agenda      virtual time: what happens when, in one order
    master      when rounds are said; the core says what is in them
    agents      what agents and apps make of that, and how a fork takes up what they were doing
    partitions  what runs: containers and the work that they do
    simulation  all of it together, writing an ordinary log
    recorded    a log simulated again under its own timings: whether the decisions are the same
    rehearsal   a real run played again with models in place of its apps: how far off it is
    contenders  who is compared: a policy, its parameters, and what sharing in its way costs
    yardstick   Pollux's workloads as its own simulator runs them, and what it publishes of them
    runs        running scenarios, several at once
    requests    what the jobs of a trace had, as fixed counts
    history     what a log tells of its apps' work, and what others said meanwhile
    fitting     models of a log's apps, with what each part rests on
    forks       a log played on from one of its moments, as it was or changed; fork_log keeps what comes of it
    backtest    how far the simulation of what happened is from what happened
    whatif      a log as it really was, played on unchanged, and changed
    starting    when an app that waits will start

A simulation appends real records, by the real codec, and folds them with `evolve`; `decide` makes the rounds.  So the log that
comes out can be read by everything that reads logs, and an audit of it checks the simulator's decisions as it checks a
master's.  What is simulated are only the outside's answers: that a container has started, that a checkpoint is written, that
the work is done.  A run depends on its scenario alone: one seed, one log, byte for byte.

A simulation starts from an empty log, or from the state of another one (a fork).

    SimulationError  a scenario that can't be, said in one line
        WhatIfError  a moment of a log from which nothing can be played on
"""

from __future__ import annotations

from replay import ReplayError


class SimulationError(ReplayError):
    """A workload or a scenario that can't be simulated; the message is one line for people."""
