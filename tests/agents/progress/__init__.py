"""Progress files: how they are read, what their lines mean, and which reports are on the log."""
