"""OASiS: jobs are admitted by prices, and each has a plan for all slots until its end.

Bao, Peng, Wu, Li, "Online Job Scheduling in Distributed Machine Learning Clusters", INFOCOM 2018 (arXiv 1801.00936).

    model      jobs, machines and slots (§III), and what a completion is worth
    prices     what a resource of a machine costs in a slot (§IV), and the competitive ratio that follows
    schedule   the cheapest schedule of one job, by dynamic programming (§IV)
    online     one job after the other, as they arrive (§IV, the paper's online algorithm)
    offline    the optimum of small instances, with all arrivals known (§III), as a mixed-integer program
    planning   plans of apps on a cluster that changes: what is kept, and what is planned again
    policy     the policy `oasis`

Start with `online`.  The first five modules are the paper's algorithm on whole instances; `planning` and `policy` run it in a
live cluster.  Like all of `dorm.policies` they import `events` alone, and know nothing of logs and clocks.

What the paper leaves open, and what is chosen here, is in the modules' docstrings and in docs/policies.md.
"""
