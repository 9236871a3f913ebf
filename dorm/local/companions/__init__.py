"""Commands as processes beside this one, for work that no master or agent should wait for.

companion  starts the process, again when it ends, and ends it.  Start here
api        the API and the dashboard of a cluster on this machine
views      users' views, beside a master
"""
