"""Training with parameter servers, as the engine `ps` places them.

    roles     which of the app's containers are servers, and which one this is
    server    holds a part of the parameters: adds up the workers' gradients, updates, answers
    worker    a worker's loop: gradients of its shards out, new parameters in;  connections: to all servers
    program   the command line of a program that is a server or a worker

Start with `program`.  Steps are synchronous, and a server adds up shards in their own order, so the result equals the
ring's, bit for bit, for any number of servers and workers.  Imports `compose.apps.learning`, `ring` and `worker`.
"""
