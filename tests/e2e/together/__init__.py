"""Features combined in one app."""
