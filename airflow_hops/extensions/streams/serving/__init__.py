"""Captured requests in a topic."""
