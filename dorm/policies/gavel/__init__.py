"""The policy `gavel`: max-min fairness that knows how fast each app is on each type of node.

    target   which part of its time each app should spend on each type: a linear program
    policy   the policy: rounds that come near to that

Start with `policy`.  Imports what all policies may, and `dorm.policies.baselines` to serve whole partitions.
"""
