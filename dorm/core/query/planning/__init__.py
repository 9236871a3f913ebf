"""The decisions that would follow.

    plans      what the next decision would be if something happened first; start here
    assumed    what happens first
    planned    what a plan holds
    playing_live  what members of live apps would say, for plans
    trying     what a change of settings would do
    assumed_settings  other settings, for plans and forks

Imports the other queries.
"""
