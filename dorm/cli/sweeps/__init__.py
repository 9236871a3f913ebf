"""Commands about sweeps: many apps from one spec.

commands  run, list, cancel.  Start here
described what `run` is given, as the document of a sweep
show      the apps of one sweep beside each other
edit      how many of them run at once
"""
