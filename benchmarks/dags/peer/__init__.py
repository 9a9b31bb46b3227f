"""The peer's work in this project's words: the same rows, features, model and epochs."""
