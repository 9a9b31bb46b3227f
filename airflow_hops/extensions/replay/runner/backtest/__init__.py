"""Back-tests: the results that retraining policies would have had in the past."""
