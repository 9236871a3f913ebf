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

One stream holds everything that matters, in one total order: `dorm.<cluster>.<Kind>.<who>`, and
`dorm.<cluster>.round.master` for everything that a master publishes at once. A round is one message, so it is stored
completely or not at all. It carries the sequence of the previous round, so two masters never overwrite each other. A
kind counts only on its own subject, so a server's permissions decide who may publish it. Every append carries an id and
is repeated under that id until its outcome is known: stored, certainly not stored, or unknown (`events.log.interface`,
`events.appending`). Bodies are MessagePack maps; decoding bounds all numbers, so sums fit into 64 bits. Unreadable
records are counted and skipped.

A position is `seq`, or `seq.index` for a fact of a round. A tail resumes from it, and it is the id of a CloudEvent.
Heartbeats have their own stream with an age limit. The log holds about one report of progress per app and minute; all
others go to a stream beside it, which decides nothing (`agents.progress`). Views combine both (`events.log.interface`).

Snapshots lie in a stream beside the log. A reader checks them, or folds from the start, so they affect the duration of
a start and never its result. Seals are records with a signature over the hash chain of all records before them. An
archive holds records in a file, with snapshots and an index. Rotation moves the sealed past into archives, states the
cut on the log, and only then purges the stream; `events.archive.whole` reads both as one log.

Trust. Without identity events, a cluster is open. From the first `TrustEnabled` on, the fold checks each record against
its author, which is the last token of its subject and never a field of its body (`dorm.core.authority`). A record
without authority changes nothing. Each round is signed by a master's key. Users and nodes are in NATS accounts of their
own, which import single services of the log's account (`dorm.security.roles`). A plain user reads no stream: a process
next to the masters serves the tenant a view of the log, with the same sequences and other tenants' data hidden, which
every command and observer can fold like the log (`replay.tenants`). docs/trust.md states the promises.
"""
