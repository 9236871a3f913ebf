"""The policy `dorm-speed`: Dorm's promises, in which the worth of a container is the work that it finishes.

    learning   how fast an app is with n containers, from what was measured and declared
    by_type    the same on each type of nodes
    throughput how fast it is by containers, placement and batch size, and which batch size is best
    tuning        that as the speed of an app that accepts several batch sizes
    curves        the same relative to one container, and the remaining work
    locality      how much slower it is across nodes than on one
    worth         what a count of an app is worth, with the price of changing to it
    queueing      which waiting app gets its n_min first
    lateness      how many containers keep an app from being late
    types         the types of one problem: for which apps they matter, and where these are as fast
    size_choice   one count for each app, by a linear program over those that it may have
    columns       that program with few of its columns, and a proof that the others do not matter
    placing       from these counts to containers on nodes
    speed_policy  the policy
    exact         `dorm-speed-exact`: the same as one mixed-integer program

Start with `speed_policy`.  Like all of `dorm.policies`, its modules know nothing about logs and clocks.
"""
