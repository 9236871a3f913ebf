"""Commands as separate processes, for work that no master or agent should wait for.

companion  starts, restarts and ends the process.  Start here
api        the API and the dashboard of a cluster on this machine
views      users' views, next to a master
"""
