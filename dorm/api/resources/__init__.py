"""What the routes answer.

apps       apps: list, submit, change, cancel, retry;  app_stories: why and how, curves, container output
steering/  another spec for an app, and its restart
sweeps     sweeps: list, look at, submit, cancel
past/      apps of any age, also side by side; what an app has saved
nodes      nodes: list, story, usage, drain, forget, trust
events     the log: lists and streams
decisions  the master's decisions
moments    the state, the view and partitions at any moment, and differences
usage      what was given, used and lost over a span of time
policy     settings: those in force, those to choose from, changing and trying them; pause and resume
ahead/     what the next decision would be, when waiting apps start, and the log played on with a change
session    signing in from a browser
health     whether this process is up to date, who leads, schemas;  metrics: the same for Prometheus
table      all routes; start here
pages      lists in pages;  writing: requests to the cluster
"""
