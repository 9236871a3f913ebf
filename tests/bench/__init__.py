"""Benches give one form of results, real figures, and leave nothing behind.  How fast it is, is never asserted."""
