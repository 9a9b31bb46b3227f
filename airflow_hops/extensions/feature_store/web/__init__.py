"""Feature store: definitions, freshness, use by models, and audits."""
