"""Benches beyond those that operators use (`dorm.bench`).  `dorm bench NAME` prints their results.

    run          from `dorm run` to the first line of output, with a project that is shipped
    trust        submissions on a cluster that knows its users, compared with an open one
    pause        the pause that is shown for a resize, compared with the app's own clock
    simulate     a month of a real cluster in virtual time
    calibration  real and simulated adjustments and completion times, compared
    optimizer/   one round of a policy: CPU time, distance from the best answer, changed apps
    replay/      folds from archives and servers, the state at a moment, decisions verified
    elastic/     live resizing: pauses, convergence, balance, the cost of a partition, the use of each sample
    scale/       the load that clusters of several sizes put on their control plane
    oasis/       admission by prices, compared with other schedulers and the optimum
    evaluation/  Dorm and other policies, simulated, as a report

Results have the form of `dorm.bench.report`, and failures are `dorm.bench.BenchError`.
"""
