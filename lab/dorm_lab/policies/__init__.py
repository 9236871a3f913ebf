"""Policies that papers compare with Dorm's, and that no cluster needs.

    baselines/   app-level, task-level, tiresias, optimus, srtf, themis
    goodput/     pollux, sia: by the learning speed of apps, with the best batch sizes
    oasis/       admission by prices, and a plan for each app until its end
    gavel/       max-min fairness over types of nodes that are not equally fast
    shockwave/   a market over the next rounds, in which late apps have larger budgets
    market/      apps bid for nodes; and the efficiency and fairness of any policy's answer as a division

Each is a `dorm.policies.problem.Policy`, declared as an entry point of the group `dorm.policies`.  Logs name these policies:
`dorm.policies.laboratory` checks their parameters, here as well.
"""
