"""Two apps beside each other, of one log or of two: what they asked for, how they went, what they cost.

side         an observer of a fold: one app, with its curve in bounded memory
comparison   reads the log, or both logs, and lays the two apps side by side.  Start here
"""
