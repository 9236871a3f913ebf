"""Sessions in containers, from the side of the person who enters them (`events.sessions`).

finding   which container a person means, and where it runs
session   one session: its answer, and what goes in
"""
