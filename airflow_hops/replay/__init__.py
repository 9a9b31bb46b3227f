"""Runs again: back-tests, reproduction, and comparison of runs."""
