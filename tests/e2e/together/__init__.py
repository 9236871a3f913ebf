"""Features that meet in one app."""
