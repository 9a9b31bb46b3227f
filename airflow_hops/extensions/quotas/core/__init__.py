"""Quotas, and the use that they limit."""
