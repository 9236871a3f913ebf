"""The log as one tenant sees it."""
