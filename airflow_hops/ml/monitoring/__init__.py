"""Monitoring of served models: skew, drift and performance."""
