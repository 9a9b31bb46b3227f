"""When to retrain: policies, their conditions, and the decision."""
