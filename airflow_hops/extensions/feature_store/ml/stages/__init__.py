"""Stages of Feast's feature store, one module each."""
