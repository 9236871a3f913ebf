"""Progress files: how they are read, what their lines say, and which of it goes on the log."""
