"""Exports trained models, and checks that they answer like the original."""
