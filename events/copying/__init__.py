"""Copying files of apps (`dorm cp`), as clients ask agents for them: outputs, checkpoints, and what a container has in its own
folder.  Project folders that are shipped to the cluster are `events.workdir`.

messages   the questions and the pieces of their answers
blocks     files in blocks, and the digest of a file that both sides compute
"""
