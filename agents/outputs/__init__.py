"""Files that apps leave behind, in the folder that all nodes share: their outputs next to their checkpoints.

folders        the shared folder; where an app's outputs and checkpoints lie, whose they are, and how they are removed
files          opens what a path names below a folder that apps write to, and nothing outside it; lists, reads, takes uploads
checkpoints    which files of a checkpoint have changed since it was reported; the checkpoint that another app starts from
file_requests  answers clients' questions about files (`events.copying`)
"""
