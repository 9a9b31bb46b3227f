"""Fixtures of models of other frameworks."""

from tests.ml.readers.test_folder_markers import bucket, model  # noqa: F401
from tests.ml.train.conftest import examples, trainings  # noqa: F401
