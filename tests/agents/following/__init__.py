"""What a node follows: its part, or all rounds."""
