"""One folder about an incident, for a ticket: what changed before, what happened, who was affected, and that part of the log.

happenings   an observer of a fold: what operators, users, machines and masters did, one line each
telling      reads the span once, and again for the stories of the affected apps and nodes: `Incident`.  Start here
readme       an incident in Markdown: README.md, stories.md, diff.md
folder       writes the folder, which appears whole or not at all

Everything in the folder follows from the log; of the machine that writes it, the folder has only Dorm's version.  Under
pseudonyms (`replay.export.anonymize`) the log is replaced first, so all files come from the disguised one.

    IncidentError   a span without records
"""

from __future__ import annotations

from replay import ReplayError


class IncidentError(ReplayError):
    """A span without an incident to describe; the message is one line for users."""

    code = "incident.failed"
