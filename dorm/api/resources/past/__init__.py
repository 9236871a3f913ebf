"""What apps of any age did and left.

history      apps of the past as rows, filtered and sorted, and several of them side by side.  Start here
checkpoints  what an app has saved, and where it would resume
"""
