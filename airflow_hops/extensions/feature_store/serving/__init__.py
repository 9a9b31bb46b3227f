"""Look-ups of features in the online store, for a served model."""
