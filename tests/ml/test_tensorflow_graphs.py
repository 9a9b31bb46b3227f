"""TensorFlow imported for running graphs."""

from __future__ import annotations

import subprocess
import sys

from airflow_hops.processes.programs import with_package

PROGRAM = """
import sys
from airflow_hops.processes.tensorflow_graphs import import_tensorflow

import_tensorflow()
left_out = {"keras", "scipy", "h5py", "googleapiclient"}
assert not left_out & sys.modules.keys()
import h5py, scipy.sparse
"""


def test_what_graphs_do_not_need_is_not_imported_with_tensorflow_and_can_be_later() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], env=with_package({}), check=True)
