"""Benches have one form of results, give real figures, and leave nothing behind.  Tests never assert speed."""
