"""The stages of a pipeline, a module or a package each."""
