"""The penguins pipeline's own code: where the rows are, how Spark reads them, and the model (scikit-learn)."""
