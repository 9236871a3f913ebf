"""Commands that write specs, and options of commands that are specs.

    commands   `dorm spec init`
    questions  what is asked on a terminal
    written    the spec with its comments, as text
    fields     options of `dorm run` and `dorm sweep run` that are fields of a spec

Start with `written`.
"""
