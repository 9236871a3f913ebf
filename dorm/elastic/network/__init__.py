"""Members over TCP.

    frames   a message as bytes: a JSON header and raw arrays
    secret   how members recognize each other: a key in the folder that they share
    links    connections, each with a thread that reads and one that writes
    group    the shell around `protocol.member`: threads, clock, announcements, claims

Start with `group`.  Of two members the one with the lower slot connects; a member that leaves connects with all that are
announced, because no other member knows its address any more.
"""
