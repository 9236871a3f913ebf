"""The ring of workers that sums arrays.

    collective   the ring;  rendezvous: how its workers find each other;  frames: the messages between them
    over_mpi     the same sum with MPI's messages

Start with `collective`.  Imports `compose.apps.worker`.
"""
