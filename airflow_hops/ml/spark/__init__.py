"""Spark on this machine: a context that starts quickly, workers that are forks."""
