"""Sessions in this node's containers: commands, shells and forwarded connections (`events.sessions`).

serving     who asks, and whether they may: the two subjects on which people ask
session     one session, from its first record on the log to its last
forwarding  one connection to a port of a container
bounds      how many there may be at once
"""
