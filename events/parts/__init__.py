"""A node's part: everything that one node needs to know about the cluster, derived from the log.

    document   what a part holds, and its bytes
    signing    which master wrote it, provable from the part alone

A part is a pure function of the log's records up to one sequence (`dorm.core.parts`), so replay derives it again and compares
the bytes.  The leading master stores the last part of each node beside the log (`events.log.parts`), and agents follow their
own.  Start with `document`.
"""
