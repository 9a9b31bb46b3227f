"""What both sides share of SageMaker."""
