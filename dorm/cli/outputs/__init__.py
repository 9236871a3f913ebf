"""Files that apps leave behind: their outputs and their checkpoints.

cp           copies files and folders from an app and to it
checkpoints  lists an app's checkpoints
naming       which file of which app a word of the command line means
"""
