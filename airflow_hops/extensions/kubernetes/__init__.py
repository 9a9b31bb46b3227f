"""Kubernetes: steps and ranks as pods, and KServe."""
