"""Fixtures of files in object stores."""

from tests.ml.readers.test_folder_markers import marked  # noqa: F401
