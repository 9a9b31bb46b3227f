"""Lineage: sources of an artifact, and artifacts made from it."""
