"""Queries over a state.

    views       rows for people and programs: what `ps`, `nodes` and `describe` show; start here
    sweep_rows  the apps of a sweep, side by side
    standing    each app's dominant share against its fair share
    in_force    the settings in force, with what each means; the policies that can be chosen
    plans       what the next decision would be if something happened first
    assumed     what happens first, and the contents of a plan
    trying      what a change of settings would do
    concerns    which app, user and node an event is about

What concerns one concept is with the concept.  Imports everything else of the core.
"""
