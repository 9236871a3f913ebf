"""The policy `shockwave`: a market over the next rounds, in which apps that are late have larger budgets.

    market   apps, their budgets and what a round is worth to each; the value of a plan
    program  how many of the next rounds each app gets: a concave program, solved by HiGHS
    rounds   which rounds these are
    policy   the policy: budgets from finish-time fairness, and the partitions of the first round

Start with `policy`.  Imports what all policies may, `dorm.policies.baselines` to serve whole partitions, and
`dorm.policies.speed` to learn speeds.
"""
