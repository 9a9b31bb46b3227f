"""Artifacts: their manifests, properties and addresses."""
