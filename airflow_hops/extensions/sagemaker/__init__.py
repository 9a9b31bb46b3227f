"""SageMaker endpoints as model servers."""
