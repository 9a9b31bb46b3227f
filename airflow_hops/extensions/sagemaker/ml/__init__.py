"""Deployments to SageMaker."""
