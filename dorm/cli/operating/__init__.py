"""Commands of those who keep a cluster well.

doctor    what is wrong, and what to do
nodes     list nodes, take them out for maintenance, forget them, trust them again
requests  drain, pause, resume
"""
