"""Reports to send: a comparison of runs, a model card, a skew check, each one HTML file that needs nothing else."""
