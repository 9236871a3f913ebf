"""The log's interface, and everything that does not depend on a server.

    interface    `ReadableLog`, `EventLog`, `Bus`, and the tree of errors
    memory       both in memory, for tests and simulations
    leadership   the interface of the masters' lease, and one in memory
    snapshots    copies of the state beside a log, which bound how much a start has to fold
    waiting      retries while the log does not answer
    nearest      the snapshot to fold from
    imported     records in a stream that come from an archive: their original times and ids

Start with `interface`.  Imports nothing but the vocabulary.  One conformance suite (`tests/events/log`) holds every
implementation to the interface.
"""
