"""Models of machines: their engines, the containers on them, and the programs in those.

    machine      the engines' truth: which containers run where, ports, the guard of the lease, power, engine, disk
    runtime      `agents.runtime.interface.Runtime` over a machine
    apps         programs as models: steps, checkpoints in a real folder, trouble of their own, how they take SIGTERM

Start with `machine`.
"""
