"""Masters, agents and clients as they are, in one process and in virtual time, over models of all that can fail.

One seed is one history: the same processes, messages and faults at the same moments, in whatever Python process it runs.

    world/       virtual time, hosts and processes, the server and the network, the real shells in them
    machines/    engines, containers and programs as models
    attack/      the faults
    checks/      what has to hold
    breaking/    how code is broken on purpose, and which seeds catch it

    clients      customers with the real client
    history      one seed from its start until everything has settled;  losing: one whose server loses records
    running      many seeds;  shrink: makes a failing one small
    variants     code that is broken on purpose, which has to be caught

Start with `history`.

    python -m tests.simulation --seeds 500             (`make simulate SEEDS=500`)
    python -m tests.simulation --seed 7 --trace        all of one story
    python -m tests.simulation --seed 7 --shrink       which of its faults and apps it fails without
    python -m tests.simulation --variants              which broken variants are caught, and how
"""
