"""Shared by both environments: contract, store, processes, and the model server's API."""
