"""The library that user code imports in the runtime environment."""
