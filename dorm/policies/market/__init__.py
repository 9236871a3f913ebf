"""A market among apps: each splits its budget into bids for nodes, and gets the part of a node that it bids of all bids.

    game       the game alone: best responses, their equilibrium, and how efficient and fair a division is
    values     what each class of nodes is worth to each app of a problem
    policy     the policy `market`
    answers    how efficient and fair the answer of any policy is as a division

Start with `game`.  Imports what all policies may, and `dorm.policies.baselines` to place containers.
"""
