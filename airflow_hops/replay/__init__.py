"""Repeated runs: back-tests, reproduction, and comparison of runs."""
