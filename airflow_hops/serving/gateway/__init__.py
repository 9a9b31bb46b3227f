"""Choosing the version that answers: traffic split, shadow traffic, model servers upstream."""
