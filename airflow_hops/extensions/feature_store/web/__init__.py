"""Feature store: definitions, freshness, and use by models."""
