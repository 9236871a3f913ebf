"""What owners ask of an app that exists, and the master answers: `revisions` folds edits and restarts."""
