"""The client library for users' programs.

    client             submit an app, watch it, change it, cancel it
    operator_requests  requests of operators: nodes, scheduling, retries, identities, rotation of the log
    steering           edits, restarts and holds of an app
    answers            what the cluster says about a request
    opening            a client with credentials
    finding            which app a user means by a name
    tail               events in order, filtered, from any position
    output             what containers print
    live_reports       what apps reported beside the log, and what their containers have used
    files              what apps leave behind, copied from and to them;  checkpoints: what an app has saved
    masters            which master leads
    sweeps             many apps from one spec: submitted and found together
    sessions           commands, shells and forwarded connections in containers
    errors             what a client raises in addition to the log's own errors

Start with `client`.
"""

from __future__ import annotations

from dorm.client.client import Client
from dorm.client.errors import ClientError, NoAnswer, NotFound, Refused, Unsettled
from dorm.client.tail import Filter, Tail

__all__ = ["Client", "ClientError", "Filter", "NoAnswer", "NotFound", "Refused", "Tail", "Unsettled"]
