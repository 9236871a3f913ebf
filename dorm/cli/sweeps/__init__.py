"""Commands about sweeps: many apps from one spec.

commands  run, list, cancel.  Start here
show      the apps of one sweep beside each other
"""
