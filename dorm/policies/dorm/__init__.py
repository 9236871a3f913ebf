"""The policy `dorm`: utilization and fairness near the exact optimum, at any size.

    optimizer    the four steps: serve, count, place, polish
    minimums     which apps get their n_min, and where
    counts       how many containers each app should have: a linear program over classes of nodes
    choosing     which apps change, by solving that program
    placing      greedy placement by buckets of nodes
    exchanging   containers that leave a node to apps that use it better
    making_room  which apps shrink or move for an app that waits
    polish       small exact programs over a few apps at a time

Start with `optimizer`.
"""
