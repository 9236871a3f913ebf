"""Progress files: how they are read, what their lines mean, and which reports go on the log."""
