"""The policy `gavel`: max-min fairness that knows how fast each app is on each type of node.

A package of its own because the linear program is compared with the paper's public code apart from the rounds.

    target   which part of its time each app should spend on each type: a linear program
    policy   the policy: rounds that approximate that

Start with `policy`.  Imports the packages that all policies may import, and `dorm.policies.baselines` to serve whole
partitions.
"""
