"""Gateway: traffic split, shadow traffic, and upstream model servers."""
