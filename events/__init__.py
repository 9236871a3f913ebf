"""The vocabulary of Dorm and the log it is written to.  Imports nothing of ours; everything else rests on it.

    kinds         every event: facts in the past tense, frozen, typed, one writer for each
    spec          an app's spec and the one gate (`check_spec`); spec_errors puts its refusals into words
    requirements  which nodes an app may use: an expression over their labels
    quantities    resources and durations: what people write, and integers in base units
    codec         events to MessagePack and back; JSON accepted; nothing a stranger sends makes it raise
    subjects      where on NATS each event goes, and which kind is believed there
    positions     an event with its place in the log (`118.2`): how tails, exports and commands take events from records
    cloudevents   events as CloudEvents 1.0
    log           the interface of the log and of the bus beside it, and their errors
    leadership    who leads the masters: the interface of their lease, and one in memory
    chain         the hash chain over all records
    seals         what a master signs of it, and with which key
    snapshots     states kept beside a log, so that nobody has to fold all of it
    nearest       from which snapshot of a log to fold on
    sources       which build runs: a hash of its own sources
    memory        both in memory, for tests and simulations
    archive       a log in one file that grows; `open_archive` reads whatever was exported
    segments      an exported log: compressed, indexed, with snapshots (segment_blocks: its bytes; segment_index: finding them)
    damage        what is wrong with an archive, and the part of it that can be used all the same
    jetstream     both on NATS (nats_link: the connection; nats_parser: its protocol, with a short way for records;
                  jetstream_reader: reading; nats_bus: heartbeats and questions; jetstream_snapshots: snapshots;
                  jetstream_leadership: the lease)
    imported      records in a stream that come from an archive: their times and ids (jetstream_import: putting them there)
    questions     what is asked of agents beside the log

A record is raw bytes with a sequence and the log's own time; `codec.decode` turns it into an event whenever somebody
wants to know.  Old versions are upcast on reading, unknown kinds and fields are passed over and kept.
"""
