"""Feast's feature store in steps, which run in an environment with Feast instead of the runtime environment."""
