"""The load that a cluster of some size puts on its control plane, compared with the capacity of this machine.

    model      pure: loads by resource from a cluster's size and unit costs, and which resource is exhausted first
    measuring  the unit costs, on three NATS servers on this machine
    servers    the three servers

A package of its own because the model is pure, apart from the measurement of its costs; docs/scale.md explains it.  It only
covers the listed loads: a figure below its limit is not a promise."""
