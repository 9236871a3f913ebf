"""The vocabulary, and the conformance suites of logs (`log/`)."""
