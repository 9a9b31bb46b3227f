"""ML code: every stage as plain functions, and as steps that an operator starts in the runtime environment."""

import logging
import os

from airflow_hops.core.arrow_hotfix import refuse_pickled_types

refuse_pickled_types()
# Beam 2.72: TFDV imports it, and it warns that its Google Cloud support is missing (requirements/runtime-override.txt).
logging.getLogger("apache_beam.io.filesystems").setLevel(logging.ERROR)
# TensorFlow 2.16: messages at its start (duplicate GPU factories, CPU instructions) are harmless; errors are raised.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
logging.getLogger("tensorflow").setLevel(logging.ERROR)
