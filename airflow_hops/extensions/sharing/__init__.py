"""Data sets that organisations share with each other."""
