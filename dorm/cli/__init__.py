"""The command line.  Each command is a thin shell over the client, the master, the agents or replay.

main      the program with all its commands
errors    what went wrong, in one line, with an exit code: 0 done, 1 failed or differs, 2 wrong usage
output    -o table|wide|json|yaml
connect   which cluster: --url, $DORM_URL, what `dorm up` wrote down, the default
"""
