"""Comparison of two samples of rows feature by feature: distances, their significance, and likely causes."""
