"""`dorm doctor`: what is wrong with a cluster, and what to do about it; `dorm check`: the same of an app.

    findings          a `Finding` and its severity.  Start here
    cluster_findings  pure: judges the NATS servers and their streams, the log, the masters and the agents
    expiry            when certificates and tokens end
    machine_findings  checks this machine: folders, mounts, disks, ports, the engine
    apps              pure: judges an app before it is submitted (`dorm check`)

Observing and judging are separate: the pure modules get observations.  A check without an observation is `unknown`, which is
neither good nor bad.
"""
