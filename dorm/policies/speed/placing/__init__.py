"""From the counts of the program to containers on nodes.

    partitions   containers on few nodes, one app after the other
    resizing     the counts placed, and the remaining room to the apps that gain most
    gathering    the same, and apps that are slower across nodes come to one
    moving       the same if types of nodes matter: apps also move to another type, and others out of their way

`gathering` extends `resizing`, and `moving` extends `gathering`; `speed_policy` takes one of these two.
"""
