"""The log on NATS JetStream.  The only code that imports nats-py.

    connection     a cluster's log, bus and lease over one link;  log: `EventLog` on a stream
    access         who a connection is: addresses, credentials, names, ids of messages
    link           one connection to a server or to a cluster of servers, and its failures
    streams        how a cluster's streams are configured, found, created and replicated, and how they and their servers are
    settings       what a server reports of a stream; limits of streams, and compression of those of earlier releases
    reader         records of a stream: a pull consumer driven by hand, or one request per record
    internals      the non-public parts of nats-py that we use, and why; a fast path for records through its parser
    bus            heartbeats on a stream with an age limit, and requests to agents and masters
    stores         folders, snapshots, progress and comparisons: what a cluster keeps next to its log
    parts_store    the nodes' parts
    views          the log as a plain user sees it
    places         readers' places in the log, kept by the server
    leadership     the masters' lease as a key in a KV bucket
    integrity      checks that the stream is whole and protected; which part of the log is in archives
    importing      an archive's records written to a new stream
    websockets     what nats-py needs for WebSockets is loaded when it is used

Start with `connection`.  Imports the vocabulary and `events.log`.
"""

from __future__ import annotations

from events.nats.websockets import load_when_used

load_when_used("aiohttp")  # Before any module here imports nats-py.
