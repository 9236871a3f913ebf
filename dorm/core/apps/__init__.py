"""Rules about one app, which the fold and the decisions share.

    admission   which submissions may run at all
    bounds      how many containers an app may have, given what it has shown
    claims      places of apps that pause after a failure or were interrupted
    failures    whose fault a failure is, and what follows
    deadlines   apps that hang
    costs       what adjusting an app costs, as measured

Imports the state and `events`.
"""
