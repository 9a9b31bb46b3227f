"""Endpoints of SageMaker and Databricks as model servers."""
