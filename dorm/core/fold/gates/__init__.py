"""The fold of gates: what keeps apps from running, and what lets them go on.

    requests   holds and releases
    awaiting   apps that wait for others

Imports the state, `dorm.core.apps.gates` and the fold's effects.  Start with `requests`.
"""
