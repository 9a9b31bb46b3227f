"""Schemas and validations: what was expected of data, what was found, what was asked."""
