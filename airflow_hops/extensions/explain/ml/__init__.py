"""The steps: permutation importance, partial dependence, Shapley values."""
