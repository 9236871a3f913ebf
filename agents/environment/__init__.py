"""An app's environment: Python packages and the results of its `setup`, built once on each node and used by all
starts.

    plan      pure: what a spec asks for, its key, and the command that builds it before it becomes the app's own
    builder   the program that does so inside the container, with the app's rights and limits, in the app's output
    cache     the folders of a node, whose the oldest go when they take too much room
    pythons   which interpreters a node has
    watching  what containers have built, so that one that still builds does not count as started

Start with `plan`.  The build runs in the container itself, never in the agent: it is confined like the app, ends with
it, and its output is in the app's logs.
"""
