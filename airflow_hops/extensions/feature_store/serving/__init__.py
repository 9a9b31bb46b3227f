"""Look-ups of features at a feature server, for a served model."""
