"""Formats that statistics are computed from, each a module with the same functions.

``lay_out(file)`` returns the types of a file's columns, and the spans that can be read separately, without reading all
of the file. ``read(file, span, types, wanted)`` streams a span's rows as Arrow record batches of bounded size.
``join(one, other)`` returns the type of a column that has two types in two files, or None if no type fits both. Formats
that infer types from values also have ``all_types(file)``, which reads every row.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from airflow_hops.ml.readers.raw_file import RawFile


def format_of(file: RawFile) -> ModuleType:
    """Returns the module that reads a file."""
    return importlib.import_module(f"airflow_hops.ml.statistics.formats.{'text' if file.is_text else file.format}")
