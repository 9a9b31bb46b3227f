"""Deployments to MLServer."""
