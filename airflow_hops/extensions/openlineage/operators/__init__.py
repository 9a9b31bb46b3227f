"""OpenLineage events and facets of the operators."""
