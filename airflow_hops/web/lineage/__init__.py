"""Lineage: what an artifact was made from, and what was made from it."""
