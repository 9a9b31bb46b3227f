"""Python environments: the runtime environment, named environments over it, CUDA, Java and uv."""
