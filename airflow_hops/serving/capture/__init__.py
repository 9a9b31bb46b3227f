"""Stores requests and answers, for skew detection, warm-up and replay."""
