"""Skew: comparisons over time, single comparisons, and decisions about them."""
