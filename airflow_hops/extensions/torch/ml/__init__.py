"""PyTorch's ranks, checkpoints and sharded models."""
