"""What keeps an app from running, and for how long it may.

gates       whether an app may run at all: holds, times, and other apps that have to end first; start here
awaiting    which apps a new one waits for
editing     which apps one waits for after an edit, and what no edit opens
"""
