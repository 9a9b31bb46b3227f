"""The kind of model servers that is SageMaker, for both sides."""
