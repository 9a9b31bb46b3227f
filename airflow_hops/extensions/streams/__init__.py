"""Kafka topics: as sources, as triggers, and for captured requests."""
