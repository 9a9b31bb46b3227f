"""Fixtures of models of other frameworks."""

from tests.ml.training.conftest import examples, trainings  # noqa: F401
