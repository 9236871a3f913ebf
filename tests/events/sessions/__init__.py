"""What is said in sessions."""
