"""The real masters, agents and clients, in one process and in virtual time, over models of everything that can fail.

One seed is one history: the same processes, messages and faults at the same moments, in any Python process.

    world/       virtual time, hosts and processes, the server and the network, the real shells in them
    machines/    engines, containers and programs as models
    attack/      the faults
    checks/      the invariants
    breaking/    deliberate defects, and the seeds that catch them

    clients      customers with the real client
    history      one seed from its start until everything has settled;  losing: one whose server loses records;
                 bad_nodes: one with bad nodes and broken apps among honest ones
    running      many seeds;  shrink: reduces a failing one
    variants     deliberately broken code that the simulation has to catch

Start with `history`.

    python -m tests.simulation --seeds 500             (`make simulate SEEDS=500`)
    python -m tests.simulation --seed 7 --trace        the whole story of one seed
    python -m tests.simulation --seed 7 --shrink       the faults and apps that the failure needs
    python -m tests.simulation --variants              which broken variants are caught, and how
"""
