"""The ML side: every stage as plain functions, and as steps that an operator starts in the runtime environment."""

import logging

from airflow_hops.core.processes.arrow_hotfix import refuse_pickled_types

refuse_pickled_types()
# Beam, which TFDV imports, warns that Google's store is not there: it is left out (requirements/runtime-override.txt).
logging.getLogger("apache_beam.io.filesystems").setLevel(logging.ERROR)
