"""Whether the processes of a cluster do their work, for load balancers, service managers and alerts.

    checks          a `Check`, a `Report` of several, and the `Health` of a process.  Start here
    process_checks  the checks of a master, and of agents
    status          a master's answer to `dorm masters` and `dorm doctor`
    pages           `/healthz` and `/readyz` over HTTP
    printing        output and log of a program that outlives their readers
    systemd         sd_notify: readiness, status and watchdog of a unit of `Type=notify`

A process is *alive* while its event loop answers: a restart helps only if it does not.  It is *ready* while it does its
work: if a log or an engine does not answer, it is not ready, and a restart would change nothing.
"""
