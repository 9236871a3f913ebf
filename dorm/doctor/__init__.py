"""`dorm doctor`: what is wrong with a cluster, and what to do about it.

    findings   a `Finding` and how grave it is.  Start here
    servers    pure: what the NATS servers and their streams say
    cluster    pure: what the log, the masters and the agents say
    machine    looks at this machine: folders, mounts, disks, ports, the engine

Looking and judging are apart: the pure modules are given what was seen.  What could not be seen is `unknown`, which is neither
good nor bad.
"""
