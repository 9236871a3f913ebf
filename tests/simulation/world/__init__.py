"""One seed's world: virtual time, hosts and their processes, and the models of what lies between them and the log.

    loop         an asyncio event loop whose time jumps to the next timer
    process      hosts with a clock and a cable; processes that can be killed at any await, paused, cut off
    server       the NATS server's data: the log, heartbeats, the lease, snapshots
    network      a connection between a process and the server: latency, order, outages, late arrivals
    connection   `EventLog`, `Bus` and `Leadership` over such a connection
    shells       the real master, agent and client in such a process
    world        one seed, with all of the above;  told: logs of the shells, as lines of its story

Start with `world`.
"""
