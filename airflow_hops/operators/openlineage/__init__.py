"""OpenLineage events of operators; imported only where the provider asks for them."""
