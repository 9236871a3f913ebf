"""The ring of workers that sums arrays.

    collective   the ring;  rendezvous: how its workers find each other;  frames: the messages between them

Start with `collective`.  Imports `compose.apps.worker`.
"""
