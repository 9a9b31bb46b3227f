"""Transform: traces the preprocessing function to a graph, and transforms examples with it in Spark."""
