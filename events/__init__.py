"""Dorm's vocabulary of events, and the log that holds them.

    kinds         every event: facts in the past tense, frozen, typed, one writer for each
    spec/         an app's spec, its requirement, and the one gate for both
    quantities    resources and durations: what people write, and integers in base units
    documents     YAML, TOML and JSON that people write: what is typed is what arrives
    codec         events to MessagePack and back; accepts JSON; never raises on foreign input
    subjects      the NATS subject of each event, and which kind is believed there
    positions     an event with its place in the log (`118.2`)
    cloudevents   events as CloudEvents 1.0
    limits        bounds on numbers, texts and messages
    instants      moments in text, shown and read in one way
    times         how the cluster's times depend on each other
    addresses     addresses of servers as messages show them: without passwords
    identities    who may do what, which machine holds a node's name: the rules that master and agents share
    durable       a file written whole or not at all, which survives a loss of power
    appending     an event stored once, never confused with another sender's record
    runtimes      the runtimes of containers, each registered once
    requests      what clients ask agents in messages that are no records
    copying       questions about apps' files, and a file's digest
    sessions      what clients and agents say to each other in sessions: commands and connections in containers
    sources       the fingerprint of the running build: a hash of its sources;  logger: for modules that others import

    log/          the interface of the log, its errors, and what is independent of NATS: memory, stores, leadership
    workdir       a shipped project folder: its list of files, and the blobs that hold them
    parts         a node's part: what one node needs to know, derived from the log
    chain         the hash chain over all records, and the seals that masters sign
    archive/      logs in files
    nats/         logs on NATS JetStream; the only code that imports nats-py

Start with `kinds`, then `log.interface`.  This package imports no other package of the project.

A record is raw bytes with a sequence number and the log's own time.  `codec.decode` turns it into an event on demand.
Old versions are upcast on reading; unknown kinds and fields are skipped and kept.
"""
