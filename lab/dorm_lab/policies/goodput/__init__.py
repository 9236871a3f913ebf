"""Policies that weigh goodput: how fast an app learns, with the best batch size for its containers.

    pollux       `pollux`: the mean speed-up of all apps by goodput, by a genetic search;  genetic: that search
    sia          `sia`: one configuration for each app by an integer program;  configurations: what it chooses from;
                 placing: places configurations on nodes;  program: the program
    bounds       how many containers an app may have, and the cost of a restart in goodput
    explaining   why an app has less than its n_max

Goodputs are of `dorm.policies.speed.throughput`: start there, then `pollux` or `sia`.
"""
