"""Spark on this machine: a context that starts quickly, with workers that are forks."""
