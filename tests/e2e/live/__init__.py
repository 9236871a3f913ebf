"""Apps that are resized while they run, on a real cluster."""
