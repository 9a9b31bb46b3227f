"""Fixtures of models of other frameworks."""

from tests.ml.train.conftest import examples, trainings  # noqa: F401
