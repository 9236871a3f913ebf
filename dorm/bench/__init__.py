"""Benchmarks on real parts, on the machine at hand.  `dorm bench NAME` prints their results.

    report      the one form of every result, and percentiles
    codec       µs per event: encode, decode, fold
    submit      from a submission to its running container
    flood       hostile submissions, and what they cost the others
    exec        `dorm exec APP -- true`, compared with the same command without Dorm
    resize      from a decision to the complete new generation, phase by phase
    api/        the HTTP API: reads, submissions, a thousand readers, any moment of a long log
    year/       a log that grows and is rotated again and again: start-up, memory, any moment, disk
    page_bench  the dashboard of a large cluster in a browser: frame times, load, size

    bench_cluster  a cluster of real parts for one benchmark, removed afterwards
    apart          work in separate processes
    demo_log       the log that `codec` reads: the demo's, written in virtual time
    long_log       a history of any length;  log_server: the same on a NATS server, and starts from its snapshots

The laboratory, a distribution of its own, has the others: `dorm_lab.bench`.
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
