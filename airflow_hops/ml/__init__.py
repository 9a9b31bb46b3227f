"""The ML side: every stage as plain functions, and as steps that an operator starts in the runtime environment."""

import logging
import os

from airflow_hops.core.processes.arrow_hotfix import refuse_pickled_types

refuse_pickled_types()
# Beam, which TFDV imports, warns that Google's store is not there: it is left out (requirements/runtime-override.txt).
logging.getLogger("apache_beam.io.filesystems").setLevel(logging.ERROR)
# TensorFlow's greetings (GPU factories registered twice, instructions of the CPU) alarm and mean nothing; errors raise.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
logging.getLogger("tensorflow").setLevel(logging.ERROR)
