"""One seed's world: virtual time, hosts and their processes, and the models of what lies between them and the log.

    loop         an asyncio event loop whose time jumps to the next timer
    process      hosts with a clock and a cable; processes that can be killed at any await, paused, cut off
    server       what the NATS server keeps: the log, heartbeats, who leads, snapshots
    network      a connection between a process and the server: latency, order, outages, late arrivals
    connection   `EventLog`, `Bus` and `Leadership` over such a connection
    shells       the real master, agent and client in such a process
    world        one seed, and all of the above in it;  told: what the shells log, as lines of its story

Start with `world`.
"""
