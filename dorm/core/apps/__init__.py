"""Rules about one app, shared by the fold and the decisions.

    claims      reservations of apps that pause after a failure or were interrupted
    failures    why a generation failed, and the consequences
    faults      whose fault that is: pairs that are avoided, and suspect nodes
    resizable   whether it may be resized: apps without a checkpoint, and those that forbid it
    crossing    live changes that would wait for each other's room without end

Imports the state, `events`, and what policies are asked (`dorm.policies.problem`).
"""
