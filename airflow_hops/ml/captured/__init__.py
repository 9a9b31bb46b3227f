"""Captured requests of a model server, and their later labels."""
