"""Benches of the laboratory give real figures, and leave nothing behind.  Tests never assert speed."""
