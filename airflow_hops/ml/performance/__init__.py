"""Measures the performance of served versions once labels arrive."""
