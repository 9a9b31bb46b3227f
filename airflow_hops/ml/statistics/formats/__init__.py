"""The formats that statistics are computed from, each a module with the same functions.

``lay_out(file)`` says what a file holds without reading all of it: the types of its columns, and the spans that may be
read apart. ``read(file, span, types, wanted)`` streams the rows of a span as Arrow record batches of bounded size.
``join(one, other)`` is the type of a column that is of two types in two files, or None if it can be of only one. A
format that tells types by its values has ``all_types(file)`` too, which looks at every row.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from airflow_hops.ml.readers.raw_file import RawFile


def format_of(file: RawFile) -> ModuleType:
    """The module that reads a file."""
    return importlib.import_module(f"airflow_hops.ml.statistics.formats.{'text' if file.is_text else file.format}")
