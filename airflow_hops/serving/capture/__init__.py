"""Keeps what was asked and answered, for skew detection, warm-up and replay."""
