"""Settings of a cluster's streams besides their subjects, including those changed on streams of earlier releases.

limits        how large messages and streams may become, and when a log is nearly full; start here
compression   streams of earlier releases that compress records

Imports the connection (`events.nats.link`) and `events.nats.stream_state`.
"""
