"""Output of containers, and when it was written."""
