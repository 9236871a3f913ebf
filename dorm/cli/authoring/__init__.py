"""Commands that write specs.

    commands   `dorm spec init`
    questions  what is asked on a terminal
    written    the spec with its comments, as text

Start with `written`.
"""
