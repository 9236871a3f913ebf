"""The records that a node follows: its part, and of the log its own facts; or the whole of the master's rounds.

    follower      reads both, and chooses between them; keeps what was read over a restart
    parts         pure: a part becomes what is desired, with the node's later facts on top
    keys          whose signature under a part counts
    desired_file  the folded state on disk

Start with `follower`.  A node follows its part wherever the leading master writes parts.  If it does not, as masters before
0.6.0, the node folds the master's rounds by itself.
"""
