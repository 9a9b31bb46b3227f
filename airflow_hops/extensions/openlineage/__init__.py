"""OpenLineage events of operators."""
