"""Which version answers: traffic split, shadow traffic, model servers upstream."""
