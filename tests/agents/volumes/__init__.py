"""What a node offers to apps by name."""
