"""Deployment: a version comes to serve, and people decide what serves."""
