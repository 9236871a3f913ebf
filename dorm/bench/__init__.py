"""Benchmarks on real parts, on the machine at hand.  `dorm bench NAME` prints their results.

    report       the one form of every result, and percentiles
    codec        µs per event: encode, decode, fold
    submit       from a submission to its running container
    run          from `dorm run` to the first line of output, with a project that is shipped
    flood        hostile submissions, and what they cost the others
    exec         `dorm exec APP -- true`, compared with the same command without Dorm
    trust        the same on a cluster that knows its users, compared with an open one
    resize       from a decision to the complete new generation, phase by phase
    pause        the pause that is shown for a resize, compared with the app's own clock
    simulate     a month of a real cluster in virtual time
    calibration  real and simulated adjustments and completion times, compared
    optimizer/   one round of a policy: CPU time, distance from the best answer, changed apps
    replay/      folds from archives and servers, the state at a moment, decisions verified
    api/         the HTTP API: reads, submissions, a thousand readers, any moment of a long log
    elastic/     live resizing: pauses, convergence, balance, the cost of a partition, the use of each sample
    scale/       the load that clusters of several sizes put on their control plane
    oasis/       admission by prices, compared with other schedulers and the optimum
    evaluation/  Dorm and other policies, simulated, as a report
    year/        a log that grows and is rotated again and again: start-up, memory, any moment, disk
    page         the dashboard of a large cluster in a browser: frame times, load, size

    cluster      a cluster of real parts for one benchmark, removed afterwards
    apart        work in separate processes
    demo_log     the log that `codec` reads: the demo's, written in virtual time

Faults and load on real clusters are in `tests/lab`: they need root, namespaces, or a machine of their own.

A result is one object:

    {"bench": "codec", "machine": {"cpu": …, "cores": …, …}, "settings": {…},
     "figures": {"decode_fold_events_per_s": {"value": 812345.6, "unit": "events/s", "goal": ">= 700000"}, …}}

A figure's name is in snake case and ends with its unit (a count starts with what is counted).  Only some figures have a goal;
missing one is not a failure, since machines differ.  A failed measurement raises: no figure is invented or left at zero.

    BenchError    the measurement failed; the message says why
"""

from __future__ import annotations

from events.errors import DormError


class BenchError(DormError):
    """The measurement failed; the message is one line for users."""

    code = "bench.failed"
