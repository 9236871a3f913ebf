"""A client of the HTTP API for users' own environments, a separate distribution (`dorm-remote`) that needs only the standard
library.

    from dorm.remote import Client

    dorm = Client("http://127.0.0.1:4280")
    app = dorm.submit({"name": "hello", "command": ["sleep", "5"], "demand": {"cpu": 1}})
    print(dorm.wait(app.id).phase)

    client    in ordinary code; start here
    aio       the same for asyncio
    verbs     what both can do, each verb once, as steps without I/O:  apps, nodes, events
    steering  the same for holds, restarts and edits;  sweeping: for sweeps;  past: for apps of any age
    steps     the steps that verbs consist of
    asks      requests, as data
    answers   the answers' types
    wire      HTTP/1.1 and server-sent events, without I/O
    errors    exceptions

Reads are repeated through short outages, and submissions under the same key, so that a repeat is the same app.  Streams resume
exactly.  `dorm.client` reads the log itself instead, and is meant for the control plane's own tools.
"""

from __future__ import annotations

from dorm.remote.aio import AsyncClient
from dorm.remote.answers import (
    App,
    Checkpoints,
    Edited,
    Event,
    Node,
    PastApp,
    Restarted,
    Spec,
    Stored,
    Submitted,
    SubmittedSweep,
    Sweep,
)
from dorm.remote.client import Client
from dorm.remote.errors import Changed, NotFound, Problem, Refused, RemoteError, Unreachable, Unsettled

__all__ = [
    "App",
    "AsyncClient",
    "Changed",
    "Checkpoints",
    "Client",
    "Edited",
    "Event",
    "Node",
    "NotFound",
    "PastApp",
    "Problem",
    "Refused",
    "RemoteError",
    "Restarted",
    "Spec",
    "Stored",
    "Submitted",
    "SubmittedSweep",
    "Sweep",
    "Unreachable",
    "Unsettled",
]
