"""Rehearsals: faults that are planted into windows of rows, and what the monitor says of them."""
