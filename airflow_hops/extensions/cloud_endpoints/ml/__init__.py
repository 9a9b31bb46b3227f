"""Deployments to endpoints of clouds."""
