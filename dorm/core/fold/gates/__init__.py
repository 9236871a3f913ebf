"""The fold of gates: conditions that keep apps from running, and their ends.

    requests   holds and releases
    awaiting   the gates of a new app, and what an end means for those that wait for it
    editing    what an edit does to gates, time and the limit of a group

Imports the state, `dorm.core.apps.gating.gates` and the fold's effects.  Start with `requests`.
"""
