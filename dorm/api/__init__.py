"""The HTTP API: a door to the log for pages, programs and other languages.

    serving      the server: application, sockets, what starts and ends with it; start here
    options      where it listens, and its limits
    routes       what a route is: its parameters, body and answer by their types; how a request becomes a call
    services     what handlers have at hand;  looking: answers from a state, now or at any moment
    items        events as they are shown;  streaming: answers that are streams
    answers      bodies as bytes, encoded and compressed off the loop
    problems     every error as an RFC 9457 document, in one place;  errors: the API's own
    guards       hosts, origins and content types that are refused;  connections: limits of each address
    identity     which user makes a request, and what that user may do
    openapi      the description of all routes, from their types
    page         the dashboard's files;  encryption: its certificate, read again when it is renewed
    following/   this process's own fold of the log: now, and any moment of the past
    streams/     events, changes of the view and container output as server-sent events
    resources/   what the routes answer

A process of the API folds the log like any other reader and asks the master for nothing, so any number of them can
run next to each other, and none can harm the cluster. Work that takes more than some milliseconds runs in threads:
long folds and answers, large bodies. Everything that a client can make grow is bounded: bodies, headers, connections,
streams and their buffers, caches.

Imports the client, replay, the core and the layers below.  It imports no master, no agent and no command line.
"""
