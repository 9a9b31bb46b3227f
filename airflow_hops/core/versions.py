"""Differences between the libraries of the profiles of the runtime environment, in one place.

Everything else is written for the APIs that both profiles have. Each function here covers one difference.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from airflow_hops.core.errors import BadInput
from airflow_hops.core.profiles import CURRENT, own_profile


def import_arrow_modules() -> None:
    """Imports modules that PyArrow imports lazily; a fork while another thread imports them would wait for ever."""
    for name in ("_dataset", "compute", "pandas_compat"):
        importlib.import_module(f"pyarrow.{name}")
    try:
        importlib.import_module("pyarrow._acero")
    except ModuleNotFoundError:  # PyArrow 10
        importlib.import_module("pyarrow._exec_plan")


def parquet_file(source: object, **options: object) -> Any:
    """Opens a Parquet file with UUIDs and JSON as bytes and text, as PyArrow before 21 reads them."""
    import pyarrow.parquet as pq

    if "arrow_extensions_enabled" in inspect.signature(pq.ParquetFile.__init__).parameters:
        options["arrow_extensions_enabled"] = False
    return pq.ParquetFile(source, **options)


def is_newer_arrow_type(type_: Any) -> bool:
    """Returns whether PyArrow 10 does not know an Arrow type or one within it, so that both profiles read it alike."""
    import pyarrow as pa

    names = ("string_view", "binary_view", "list_view", "large_list_view", "decimal32", "decimal64", "run_end_encoded")
    checks = (getattr(pa.types, f"is_{name}", None) for name in names)
    if isinstance(type_, pa.BaseExtensionType) or any(check is not None and check(type_) for check in checks):
        return True
    if pa.types.is_struct(type_):
        return any(is_newer_arrow_type(field.type) for field in type_)
    if pa.types.is_map(type_):
        return is_newer_arrow_type(type_.key_type) or is_newer_arrow_type(type_.item_type)
    return hasattr(type_, "value_type") and is_newer_arrow_type(type_.value_type)


def hide_triton() -> None:
    """Hides Triton, which PyTorch's CUDA builds bring: loaded beside TensorFlow 2.21, its library crashes the process.

    PyTorch then fails to compile for GPUs, and works otherwise.
    """
    if own_profile() is CURRENT:
        sys.modules.setdefault("triton", None)  # type: ignore[arg-type]


def message_to_json(message: object, **options: object) -> str:
    """Returns a protobuf message as JSON with its default values, an option that protobuf 5 renamed."""
    from google.protobuf import json_format

    new = "always_print_fields_with_no_presence"
    known = inspect.signature(json_format.MessageToJson).parameters
    options[new if new in known else "including_default_value_fields"] = True
    text: str = json_format.MessageToJson(message, **options)
    return text


def has_slices(options: Any) -> bool:
    """Returns whether TFDV's ``StatsOptions`` define slices; only TFDV before 1.21 has queries."""
    queries = getattr(options, "experimental_slice_sqls", None)
    return bool(options.experimental_slice_functions or queries or options.slicing_config)


def slicers(options: Any) -> tuple[list[Callable[..., Any]], Any]:
    """Returns the slicing functions of TFDV's ``StatsOptions``, and TFDV's runner of slicing queries or None.

    Raises:
        BadInput: there are queries, which TFDV 1.21 no longer runs.
    """
    from tensorflow_data_validation.utils import slicing_util

    functions, queries = options.experimental_slice_functions, getattr(options, "experimental_slice_sqls", None)
    config = options.slicing_config
    if hasattr(slicing_util, "GenerateSlicesSqlDoFn"):
        if config:
            functions, queries = slicing_util.convert_slicing_config_to_slice_functions_and_sqls(config)
    elif config:
        for spec in config.slicing_specs:
            if spec.slice_keys_sql:
                raise BadInput(
                    f"slices: the query {spec.slice_keys_sql!r}: only the profile 'base' has SQL, since TFDV 1.21 "
                    "does not run it; slice by features, or create the runtime environment with --profile base"
                )
        functions = slicing_util.convert_slicing_config_to_slice_functions(config)
    runner = None
    if queries:
        runner = slicing_util.GenerateSlicesSqlDoFn(slice_sqls=queries)
        runner.setup()
    return list(functions or ()), runner
