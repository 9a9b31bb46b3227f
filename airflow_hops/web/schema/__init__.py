"""Schemas and validations: expectations on data, anomalies, and questions to people."""
