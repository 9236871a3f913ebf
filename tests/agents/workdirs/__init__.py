"""Containers that start in copies of shipped folders."""
