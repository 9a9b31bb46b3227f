"""Artifacts: what tasks made, their files, rows and statistics."""
