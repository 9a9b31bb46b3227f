"""Quotas of a connection, which refuse steps before they start, and the costs of pipelines."""
