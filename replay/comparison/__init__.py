"""Two apps side by side, of one log or of two: what they asked for, how they went, what they cost.

side         an observer of a fold: one app, with its curve in bounded memory
comparison   reads the log, or both logs, and compares the two apps.  Start here
"""
