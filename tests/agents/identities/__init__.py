"""Identities of nodes, and which records agents believe."""
