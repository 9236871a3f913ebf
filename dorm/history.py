"""A cluster's whole history over a connection: the log's stream, and the archives that rotation moved its past into.

Every process that connects for people or for a cluster reads the log this way.  Archives are looked for where the log says
that they are, or where `DORM_ARCHIVES` or the caller says, and only once something in them is read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from events.archive.whole import WholeLog

if TYPE_CHECKING:
    from events.nats.connection import Connection

VARIABLE = "DORM_ARCHIVES"
"""Names the place of the archives for a machine that reaches them elsewhere than their master does."""


def with_history(connection: Connection, place: str = "") -> Connection:
    """Return the connection with a log that reads archives as well.  `place`: where they are; "" for the environment's, or
    else the log's own word."""
    if connection.log is not connection.stream:
        return connection  # A plain user reads a view, and what serves it reads both.
    connection.log = WholeLog(connection.stream, connection.cluster, place=place or os.environ.get(VARIABLE, ""))
    return connection
