"""Sphinx's configuration: ``make docs``, warnings as errors."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

gc.disable()  # of the nodes of all pages, which stay to the end, hardly one is garbage
HERE = Path(__file__).resolve().parent
# Airflow writes its configuration where it is imported.
os.environ.setdefault("AIRFLOW_HOME", str(HERE / "_build" / "airflow"))
sys.path.insert(0, str(HERE))

from airflow_hops import __version__  # noqa: E402

project = "airflow-hops"
author = "The airflow-hops authors"
copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generated"]
linkcheck_ignore = ["http://localhost"]  # the addresses of the tutorial's own servers
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]

# The ML side's libraries are not in the environment that builds these pages.
autodoc_mock_imports = [
    *("google_crc32c", "horovod", "keras", "mlflow", "onnx", "onnxruntime", "orjson", "pandas", "prometheus_client"),
    *("pyarrow_hotfix", "pyspark", "scipy", "skl2onnx", "sklearn", "skops", "tensorflow"),
    *("tensorflow_data_validation", "tensorflow_metadata", "tfx_bsl"),
]
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
autodoc_type_aliases = {  # of airflow_hops.runner.arguments, without their rules, which the arguments' texts give
    **dict.fromkeys(("FolderName", "ModelName", "Time"), "str"),
    "FunctionName": "Callable | str",
    **dict.fromkeys(("Count", "Percent", "WholeNumber"), "int"),
    **dict.fromkeys(("NotNegative", "Positive", "Probability", "Share"), "float"),
    **dict.fromkeys(("Age", "Length"), "timedelta"),
    "Version": "int | str",
}
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False

smartquotes = False

html_theme = "furo"
html_title = f"airflow-hops {__version__}"
html_show_sphinx = False
