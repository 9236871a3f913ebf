"""Commands that read the log as it grows, and verify it.

events     print or follow the log
commands   verify and seal it;  verdicts: the results of a verification, in words
rotation   move its past into archives, and show which records are where
"""
