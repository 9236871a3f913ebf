"""The vocabulary of Dorm and the log it is written to."""
