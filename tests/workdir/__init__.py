"""Shipped project folders: packed, sent, fetched and laid out."""
