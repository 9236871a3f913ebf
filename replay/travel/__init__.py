"""The state at any moment of a log.

travel    the nearest snapshot before a moment, and a short fold from there diff      the difference between two
states;  diff_words: in words;  settings_between: who changed settings in between reported  what apps had reported at
that time, beside the log stepper   a cursor that steps through a log, forward and back;  pages: its cache;  search:
its filters

Start with `travel`.  Import `state_at` and `Stepper` from here, and functions named like their module from that (`diff.diff`).
"""

from __future__ import annotations

from replay.travel.diff import Changed, Diff, Point, SetBy, Thing
from replay.travel.search import SearchError
from replay.travel.stepper import Stepper
from replay.travel.travel import Seen, fold_on, state_at

__all__ = ["Changed", "Diff", "Point", "SearchError", "Seen", "SetBy", "Stepper", "Thing", "fold_on", "state_at"]
