"""What a cluster of some size asks of its control plane, beside what this machine can do of it.

    model      pure: loads by resource from a cluster's size and unit costs, and which resource is full first
    measuring  the unit costs, on three NATS servers on this machine
    servers    those servers

The model is what docs/scale.md explains.  It leaves out what it does not name: a figure below its limit is no promise.
"""
