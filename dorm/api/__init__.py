"""The HTTP API: a door to the log for pages, programs and other languages.

    serving      the server: application, sockets, what starts and ends with it; start here
    options      where it listens, and its limits
    routes       what a route is: its parameters, body and answer by their types; how a request becomes a call
    handlers     what handlers share: answers from a state, now or at any moment, pages, writes, streams
    resources/   what the routes answer
    services     what handlers have at hand, for everyone or for one tenant
    clusters     what the services serve: a cluster, an archive, a tenant's view of a cluster
    follower     this process's fold of the log, its newest records, and a client that reads from it
    moments      states of the past, and pictures of spans;  lives: what happened to an app or a node, and why
    event_pages  events in pages, forward and backward;  streams: events, changes of the view and output as they come
    reports      what is next to the log: progress, heartbeats, who leads
    threads      where answers are computed, and how many at once
    answers      bodies as bytes, encoded and compressed off the loop; every error as an RFC 9457 document
    errors       the API's own
    connections  what a connection may: its certificate, limits of each address, refused hosts, origins and types
    identity     which user makes a request, and what that user may do
    openapi      the description of all routes, from their types
    page         the dashboard's files

A process of the API folds the log like any other reader and asks the master for nothing, so any number of them can
run next to each other, and none can harm the cluster. Work that takes more than some milliseconds runs in threads:
long folds and answers, large bodies. Everything that a client can make grow is bounded: bodies, headers, connections,
streams and their buffers, caches.

Imports the client, replay, the core and the layers below.  It imports no master, no agent and no command line.
"""
