"""What the routes answer.

apps       apps: list, submit, change, cancel, retry;  app_stories: why and how, curves
output     what containers write, and the files that an app leaves
steering   another spec for an app, tried or set, and its restart
sweeps     sweeps: list, look at, submit, cancel
past       apps of any age, also side by side; what an app has saved; what was given, used and lost over a span of time
nodes      nodes: list, story, usage, drain, forget, trust
events     the log: lists and streams, and the master's decisions
shared     several streams over one connection
findings   whether the cluster is well, as far as that shows without a look at machines
moments    the state, the view and partitions at any moment, and differences
policy     what the cluster decides by, and what it would decide: settings, tried or changed, plans and simulations; pause
process    whether this process is up to date, who leads, schemas; the same for Prometheus; signing in from a browser
table      all routes; start here
"""
