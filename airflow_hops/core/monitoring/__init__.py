"""Reports of monitors, and decisions on retraining, in the store."""
