"""NumPy's readers and writers for files of the project; further arguments are those of NumPy."""

import io
from typing import Any

import numpy as np

from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.extensions.experiments.hops import absent
from airflow_hops.extensions.experiments.hops.hdfs import copy_to_local, dump, open_file

__getattr__ = absent.calls_of("numpy_helper")


def load(hdfs_filename: str, **kwds: Any) -> Any:
    """Reads a file of :func:`save`, :func:`savez` or :func:`savez_compressed`."""
    with open_file(hdfs_filename) as file:
        return np.load(io.BytesIO(file.read()), **kwds)


def loadtxt(hdfs_filename: str, **kwds: Any) -> object:
    """Reads a text file with a row in each line as an array."""
    with open_file(hdfs_filename, flags="rt") as file:
        return np.loadtxt(file, **kwds)


def genfromtxt(hdfs_filename: str, **kwds: Any) -> object:
    """Reads a text file with missing values as an array."""
    with open_file(hdfs_filename, flags="rt") as file:
        return np.genfromtxt(file, **kwds)


def fromregex(hdfs_filename: str, **kwds: Any) -> Any:
    """Reads a text file by a regular expression as a structured array."""
    with open_file(hdfs_filename, flags="rt") as file:
        return np.fromregex(file, **kwds)


def fromfile(hdfs_filename: str, **kwds: Any) -> object:
    """Reads a binary or text file without a header as an array."""
    with temporary_folder("step", "numpy") as folder:
        return np.fromfile(copy_to_local(hdfs_filename, str(folder)), **kwds)


def save(hdfs_filename: str, data: object) -> None:
    """Writes an array, and replaces an existing file."""
    _write(np.save, hdfs_filename, data)


def savez(hdfs_filename: str, *args: object, **kwds: object) -> None:
    """Writes arrays into an uncompressed ``.npz`` file, and replaces an existing one."""
    _write(np.savez, hdfs_filename, *args, **kwds)


def savez_compressed(hdfs_filename: str, *args: object, **kwds: object) -> None:
    """Writes arrays into a compressed ``.npz`` file, and replaces an existing one."""
    _write(np.savez_compressed, hdfs_filename, *args, **kwds)


def _write(writer: Any, hdfs_filename: str, /, *args: object, **kwds: object) -> None:
    content = io.BytesIO()
    writer(content, *args, **kwds)
    dump(content.getvalue(), hdfs_filename)
