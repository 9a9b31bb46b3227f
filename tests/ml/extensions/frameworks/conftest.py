"""Fixtures of models of other frameworks."""

from tests.ml.readers.test_folder_markers import marked  # noqa: F401
from tests.ml.training.conftest import examples, trainings  # noqa: F401
