"""Skew: comparisons over time, one by one, and what was decided about them."""
