"""What is set on a cluster's streams besides their subjects, and changed on those of earlier releases.

limits        how large messages and streams may become, and when a log is nearly full; start here
compression   streams of earlier releases that compress records

Imports the connection (`events.nats.link`) and `events.nats.stream_state`.
"""
