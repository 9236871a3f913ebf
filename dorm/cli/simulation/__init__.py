"""Commands that run in virtual time: a log, and what would have become of it.

whatif     a log continued in the simulator
shadow     another policy beside the one that decides

`dorm simulate`, which compares policies on workloads, is of the laboratory (`dorm_lab.cli.simulate`).
"""
