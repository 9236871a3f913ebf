"""Masters, agents and clients as they are, in one process and in virtual time, over models of all that can fail.

One seed is one history: the same processes, messages and faults at the same moments, in whatever Python process it runs.

    loop         an asyncio event loop whose time jumps to the next timer
    process      hosts with a clock and a cable; processes that can be killed at any await, paused, cut off
    server       what the NATS server keeps: the log, heartbeats, who leads, snapshots
    network      a connection between a process and the server: latency, order, outages, late arrivals
    connection   `EventLog`, `Bus` and `Leadership` over such a connection
    shells       the real master, agent and client in such a process
    world        one seed, and all of the above in it

On top of it the attack:

    apps         programs as models: steps, checkpoints in a real folder, trouble of their own, how they take SIGTERM
    machine      the engines' truth: which containers run where, ports, the guard of the lease, power, engine, disk
    runtime      `agents.runtime.interface.Runtime` over a machine
    clients      customers with the real client
    faults       the schedule of faults, drawn from the seed beforehand
    attack       applies it
    checks       the promises, at each record and each change of a container; `ending` those at the end
    history      one seed from its begin until everything has come to rest
    running      many seeds; `shrink` makes a failing one small
    variants     code that is broken on purpose, which has to be caught

    python -m tests.simulation --seeds 500             (`make simulate SEEDS=500`)
    python -m tests.simulation --seed 7 --trace        all of one story
    python -m tests.simulation --seed 7 --shrink       which of its faults and apps it fails without
    python -m tests.simulation --variants              which broken variants are caught, and how
"""
