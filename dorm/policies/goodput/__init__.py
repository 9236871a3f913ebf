"""Policies that weigh goodput: how fast an app learns, with the best batch size for its containers.

    throughput   how fast an app is by containers, placement and batch size, and which batch size is best
    pollux       `pollux`: the mean speed-up of all apps by goodput, by a genetic search;  genetic: that search
    sia          `sia`: one configuration for each app by an integer program;  configurations: what it chooses from;
                 placing: places configurations on nodes
    bounds       how many containers an app may have, and the cost of a restart in goodput
    tuning       goodput as the speed of an app, for policies that only know speeds
    explaining   why an app has less than its n_max

Start with `throughput`, then `pollux` or `sia`.  The package imports the modules that all policies share (`problem`,
`integer`, `answer`, `reasons`, `parameters`, `baselines.packing`) and no other policy.
"""

from __future__ import annotations

CHOOSE_BATCHES = ("dorm-speed", "dorm-speed-exact", "pollux", "sia")
"""The policies that return batch sizes."""
