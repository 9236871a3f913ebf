"""The policy `dorm-speed`: Dorm's promises, in which the worth of a container is the work that it finishes.

    learning   how fast an app is with n containers, from what was measured and declared
    by_type    the same on each type of nodes
    curves     the same relative to one container, and the remaining work
    worth      what a count of an app is worth, with the price of changing to it
    queueing   which waiting app gets its n_min first
    lateness   how many containers keep an app from being late
    types      the types of one problem: for which apps they matter, and where these are as fast
    choosing   one count for each app, by a linear program over those that it may have
    columns    that program with few of its columns, and a proof that the others do not matter
    partitions containers on few nodes, one app after the other
    resizing   from these counts to partitions, and the remaining room to the apps that gain most
    moving     the same if types matter: apps also move to another type, and others out of their way
    policy     the policy
    exact      `dorm-speed-exact`: the same as one mixed-integer program

Start with `policy`.  Like all of `dorm.policies`, its modules know nothing about logs and clocks.
"""
