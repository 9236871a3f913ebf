"""The sample apps: training that survives resizes, and failures that end it."""
