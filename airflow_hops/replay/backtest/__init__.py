"""The back-test: what retraining policies would have made of the past."""
