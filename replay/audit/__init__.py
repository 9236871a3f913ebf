"""Verifies that a log is whole, and that it gives the same state and the same decisions again.

    audit          `verify`
    passes         a survey that cuts the log into slices, and the check of each slice;  workers: in several processes
    round_checks   the question that a round puts to an audit, and the answer from the state at its basis
    seal_checks    verifies that the log is what its masters sealed
    ledgers        whether live apps used each sample once an epoch, by their own reports
    parts_checks   whether the nodes' parts say what the log says
    differences    two facts, field by field

Start with `audit`.
"""

from __future__ import annotations

from replay.audit.audit import Report, verify
from replay.audit.differences import Difference
from replay.audit.ledgers import LedgerReport, WrongLedger
from replay.audit.parts_checks import PartsReport, WrongPart
from replay.audit.passes import Divergence
from replay.audit.seal_checks import Expected, SealError, SealReport
from replay.audit.workers import AuditError

__all__ = [
    "AuditError",
    "Difference",
    "Divergence",
    "Expected",
    "LedgerReport",
    "PartsReport",
    "Report",
    "SealError",
    "SealReport",
    "WrongLedger",
    "WrongPart",
    "verify",
]
