"""Commands about apps.

run        a command as it is typed, followed to its end;  attached: its output, its end, and what Ctrl-C means
commands   submit, ps, logs, update, cancel;  waiting: their output while nothing is decided
retry      retry an app now that pauses after a failure
describe   everything about one app
explain    why an app has what it has
story      what happened to an app or a node;  compare: two apps beside each other
plan       the next decision, without doing anything
schema     the JSON Schema of specs
"""
