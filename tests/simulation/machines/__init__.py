"""Models of machines: their engines, the containers on them, and the programs in those.

    machine      the true state of engines: containers, ports, the guard of the lease, power, engine, disk
    runtime      `agents.runtime.interface.Runtime` over a machine
    apps         programs as models: steps, checkpoints in a real folder, their own failures, reactions to SIGTERM

Start with `machine`.
"""
