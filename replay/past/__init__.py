"""Past apps of any age: how each ended, from the log alone.

    gathering   one fold, from which each app is kept as one row.  Start here
    selecting   pure: selects rows, and orders them

    found = await gather(log, since=parse("-30d"))
    best = in_order(select(found.apps, conditions=[parse_condition("loss<0.1")]), "loss")

Imports `replay.travel`, the core and `events`.
"""

from __future__ import annotations

from replay.past.gathering import Gathered, PastApp, gather
from replay.past.selecting import Condition, SelectError, in_order, parse_condition, select

__all__ = ["Condition", "Gathered", "PastApp", "SelectError", "gather", "in_order", "parse_condition", "select"]
