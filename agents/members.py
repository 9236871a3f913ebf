"""What a live app's containers read about their membership: the file that `DORM_MEMBERS` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.engines import elastic

if TYPE_CHECKING:
    from agents.desired import DesiredApp


def announcement(app: DesiredApp) -> bytes:
    """Return the file's content for the membership that was announced last."""
    return elastic.announcement(app.generation, app.membership, app.spec.deadlines.live_s, app.members, app.founders)
