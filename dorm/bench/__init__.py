"""What this system takes, measured on the machine at hand, on real parts.  `dorm bench NAME` prints it.

    report     the one form in which every bench gives its results, and percentiles
    codec      µs per event: encode, decode, fold
    submit     submission stored → container started
    resize     decision → the whole new generation started, phase by phase
    chaos      real faults on three machines, and what survived; with chaos_cluster, _faults, _work (what is done), _log,
               _record, _results (three witnesses), _recovery, _figures
    calibration  real adjustments and completion times beside simulated ones
    demo_log   the log that `codec` reads: the demo's, written by the core in virtual time
    optimizer  one round of a policy: CPU time, gap to the best answer, apps changed; at one size
    optimizer_scale  the same at all sizes; optimizer_plot  what both can draw
    simulate   a month of a real cluster in virtual time
    replay     looking back: folds from archives and servers, the state at a moment, deciding again; with
               replay_steps (what runs in processes of its own) and replay_server
    replay_log a history of any length: a cluster in virtual time, told again and again
    evaluation Dorm against other policies, simulated, as a report; with evaluation_parts, _paper, _traces, _figures, _text
    workload   sequences of allocation problems, for the two of them and for tests
    judge      what is to be said of an answer without the optimizer's own words
    apart      work in processes of its own
    cluster    a cluster of real parts for one bench, of which nothing is left afterwards

A result is one object:

    {"bench": "codec", "machine": {"cpu": …, "cores": …, …}, "settings": {…},
     "figures": {"decode_fold_events_per_s": {"value": 812345.6, "unit": "events/s", "goal": ">= 700000"}, …}}

A figure is called in snake case, with its unit at the end (a count begins with what is counted); a goal is there only
where one is set, and missing it is no failure, since machines differ.  What could not be measured raises instead: no figure
is ever made up or left at zero.

    BenchError    it could not be measured; the message says why
"""

from __future__ import annotations


class BenchError(Exception):
    """It could not be measured; one line for people."""
