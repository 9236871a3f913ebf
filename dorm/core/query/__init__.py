"""Queries over a state.

    views      rows for people and programs: what `ps`, `nodes` and `describe` show
    sweeps     the apps of a sweep, side by side
    standing   each app's dominant share against its fair share
    planning/  what the next decision would be if something happened first, or the settings were others
    touched    which apps and nodes a change of settings would affect
    in_force   the settings in force, with what each means
    offered    the policies that it can be changed to, with their parameters
    speaking   synthetic agent events, for plans and simulations
    suspects   suspect nodes, and nodes that apps avoid, in words
    concerns   which app, user and node an event is about

Imports everything else of the core.
"""
