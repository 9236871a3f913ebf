"""Files that apps leave behind, in the folder that all nodes share: their outputs beside their checkpoints.

folders    where an app's outputs and checkpoints lie, whose they are, and how they are removed
opening    opens what a path names below a folder that apps write to, and nothing outside it
reading    lists and reads;  uploads: takes files
origins    brings the checkpoint of the app that another one starts from
believed   which files of a checkpoint have changed since it was reported, and how they are set aside
answering  answers clients' questions about files (`events.copying`)
"""
