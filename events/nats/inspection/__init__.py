"""How a cluster's NATS servers and processes are.

streams   a cluster's streams: on which servers each copy is, and how current it is servers   each server by itself:
whether it answers, its version and its clock everyone  a question to all that listen, such as the masters
"""
