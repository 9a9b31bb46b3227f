"""Counts, latencies, metrics and logs by model and version."""
