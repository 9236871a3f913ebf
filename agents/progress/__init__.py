"""The apps' reports of their work, through the progress file of each container.

    file        the file as it grows: facts at a limited rate
    lines       what of one line can be used, and why not
    watermarks  which facts go on the decision log, and which beside it

Start with `file`.  Imports `events` and the runtime's key of a container; `agents.reporting` publishes the results.
"""
