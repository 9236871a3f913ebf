"""OASiS: jobs are admitted by prices, and each has a plan for all slots until its end.

Bao, Peng, Wu, Li, "Online Job Scheduling in Distributed Machine Learning Clusters", INFOCOM 2018 (arXiv 1801.00936).

    model      jobs, machines and slots (§III), and the worth of a completion
    prices     prices of resources by machine and slot (§IV), and the resulting competitive ratio
    schedule   the cheapest schedule of one job, by dynamic programming (§IV)
    online     one job after the other, as they arrive (§IV, the paper's online algorithm)
    offline    the optimum of small instances, with all arrivals known (§III), as a mixed-integer program
    planning   plans of apps on a changing cluster: which are kept, and which are made again
    policy     the policy `oasis`

Start with `online`.  The first five modules are the paper's algorithm on whole instances; `planning` and `policy` run it in a
live cluster.  Like all of `dorm.policies`, they import only `events`, and know nothing about logs and clocks.

The modules' docstrings and docs/policies.md state the paper's open questions, and the choices made here.
"""
