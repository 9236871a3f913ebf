"""Another spec for an app that exists, and its restart.

specs      the spec that it has, with a tag of that very spec; what to put in its place.  Start here
trying     what an edit would do, before it is made
restarts   start it again
"""
