"""The log on NATS JetStream.  The only code that imports nats-py.

    connection     a cluster's log, bus and lease over one link;  log: `EventLog` on a stream
    access/        who a connection is, and what the server forbids it
    link           one connection to a server or to a cluster of servers, and its failures
    streams        how a cluster's streams are configured, found, created and replicated
    reader         a pull consumer driven by hand; `direct` reads one record per request
    internals      the non-public parts of nats-py that we use, and why
    parser         a fast path for records through nats-py's protocol parser
    bus            heartbeats on a stream with an age limit, and requests to agents
    beside/        snapshots, progress, parts, shadows and views: what a cluster keeps or answers beside its log
    places/        readers' places in the log, kept by the server
    leadership     the masters' lease as a key in a KV bucket
    stream_state   the state that a server reports of a stream, and when it is reliable
    settings/      limits of streams, and compression of those of earlier releases
    rotated        which part of the log is in archives, and its removal from the stream
    inspection/    how servers, streams and processes are
    integrity      checks that the stream is whole and protected
    importing      an archive's records written to a new stream
    websockets     what nats-py needs for WebSockets is loaded when it is used

Start with `connection`.  Imports the vocabulary and `events.log`.
"""

from __future__ import annotations

from events.nats.websockets import load_when_used

load_when_used("aiohttp")  # Before any module here imports nats-py.
