"""Training on one or many ranks: context, checkpoints, reader, and Horovod."""
