"""Commands about apps.

run        a command as it is typed, followed to its end;  attached: its output, its end, and what Ctrl-C means
commands   submit, ps, update, cancel, kill;  waiting: their output while nothing is decided
logs       what containers wrote;  lines: the output of many of them, line by line
wait       until apps run or have ended
describe   everything about one app
explain    why an app has what it has
story      what happened to an app or a node;  compare: two apps beside each other
plan       the next decision, without doing anything
schema     the JSON Schema of specs;  verbs: words of other tools, and the commands that they mean here
"""
