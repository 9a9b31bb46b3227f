"""MLflow's side of the garbage collection."""
