"""Transform: the preprocessing function as a graph, and the examples that Spark makes with it."""
