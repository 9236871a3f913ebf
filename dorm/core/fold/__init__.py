"""The fold: `evolve(state, record)` brings the state one record further, in place.

    evolve    records of clients, operators and agents
    rounds    the master's rounds, fact by fact
    effects   what a fact entails beyond itself
    room_taken   which apps have grown into the room of one that failed
    shared_folder   which checkpoint folder is the cluster's

Start with `evolve`.  Imports `dorm.core.apps` and the state.
"""
