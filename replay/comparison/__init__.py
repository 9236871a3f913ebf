"""Two apps side by side, of one log or of two: their requests, their course, their cost.

side         an observer of a fold: one app, with its curve in bounded memory
comparison   reads the log, or both logs, and compares the two apps.  Start here
"""
