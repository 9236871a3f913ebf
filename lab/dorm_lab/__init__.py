"""The laboratory: what compares Dorm with others and measures it, and what no cluster needs to run.

    bench/      benches beyond those that operators use, and the evaluation
    policies/   policies that only papers compare
    workloads/  apps to come, clusters and real traces for the simulator
    recorded    a log simulated again under its own timings;  rehearsal: a real run simulated with models
    compare/    policies compared: tables, plots, pages
    cli/        `dorm simulate` and the benches as commands, found by entry point

A distribution of its own, `dorm-lab`, of the same version as `dorm`: `pip install 'dorm[lab]'`.  It imports `dorm`, `replay`,
`agents`, `events` and `compose`; none of them imports it.  `dorm.cli.laboratory` finds the commands by the entry points of the
group `dorm.commands`.
"""
