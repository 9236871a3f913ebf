"""One folder about an incident, for a ticket: what changed before, what happened, to whom, and the log of it.

happenings   an observer of a fold: what operators, users, machines and masters did, one line each
telling      reads the span once, and again for the stories of those concerned: `Incident`.  Start here
readme       an incident in Markdown: README.md, stories.md, diff.md
folder       writes the folder, which appears whole or not at all

Everything in the folder follows from the log, and nothing of the machine that writes it but Dorm's version is in it.  Under
pseudonyms (`replay.export.anonymize`) the log is replaced first, so all files come from the disguised one.

    IncidentError   a span without records
"""

from __future__ import annotations

from replay import ReplayError


class IncidentError(ReplayError):
    """A span that cannot be told; one line for people."""

    code = "incident.failed"
