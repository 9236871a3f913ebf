"""A market among apps: each splits its budget into bids for nodes, and gets a part of a node in proportion to its bid.

    game       the pure game: best responses, their equilibrium, and the efficiency and fairness of a division
    values     what each class of nodes is worth to each app of a problem
    policy     the policy `market`
    answers    the efficiency and fairness of any policy's answer as a division

Start with `game`.  Imports the packages that all policies may import, and `dorm.policies.baselines` to place containers.
"""
