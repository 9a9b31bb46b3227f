"""Frozen schemas: versions, differences and descriptions."""
