"""A log as a picture.

lanes        what held from when to when
fold         makes it from a log, within bounds of memory
png, trace   draw it as one picture, or for Perfetto;  labels: its texts

Start with `lanes`.
"""

from __future__ import annotations

from replay.timeline.fold import Watcher, timeline
from replay.timeline.lanes import (
    AppLane,
    Change,
    Decision,
    Mark,
    NodeLane,
    Partition,
    Phase,
    Reason,
    Size,
    Steps,
    Timeline,
    TimelineError,
)

__all__ = [
    "AppLane",
    "Change",
    "Decision",
    "Mark",
    "NodeLane",
    "Partition",
    "Phase",
    "Reason",
    "Size",
    "Steps",
    "Timeline",
    "TimelineError",
    "Watcher",
    "timeline",
]
