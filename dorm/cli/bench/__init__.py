"""`dorm bench`."""
