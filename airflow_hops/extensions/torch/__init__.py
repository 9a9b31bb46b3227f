"""Ranks of PyTorch."""
