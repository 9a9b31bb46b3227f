"""Feast's feature store in the runtime environment: repository, views and point-in-time joins."""
