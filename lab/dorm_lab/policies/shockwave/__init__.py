"""The policy `shockwave`: a market over the next rounds, in which apps that are late have larger budgets.

    market   apps, their budgets and the worth of a round to each; the value of a plan
    program  how many of the next rounds each app gets: a concave program, solved by HiGHS
    rounds   chooses the rounds
    policy   the policy: budgets from finish-time fairness, and the partitions of the first round

Start with `policy`.  Imports the packages that all policies may import, `dorm.policies.baselines` to serve whole partitions,
and `dorm.policies.speed` to learn speeds.
"""
