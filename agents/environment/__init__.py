"""An app's environment: Python packages and whatever else its `setup` makes, built once on each node and used by all starts.

    plan      pure: what a spec asks for, its key, and the command that builds it before it becomes the app's own
    builder   the program that does so inside the container, with the app's rights and limits, in the app's output
    cache     the folders of a node, whose the oldest go when they take too much room
    pythons   which interpreters a node has
    watching  what containers have built, so that one that still builds does not count as started

Start with `plan`.  The build runs in the container itself, never in the agent: it is confined as the app is, ends with it, and
what it prints is in the app's logs.
"""
