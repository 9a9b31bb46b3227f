"""Hyperparameter search: proposals, trials as processes, and their ledger."""
