"""Artifacts: results of tasks, with their files, rows and statistics."""
