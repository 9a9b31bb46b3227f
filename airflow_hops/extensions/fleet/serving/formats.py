"""The format ``fleet``: a folder with ``fleet.json``."""

from airflow_hops.extensions.fleet.core.summary import FLEET_FILE
from airflow_hops.serving.models.formats import ModelFormat, lazy_opener

FLEET = ModelFormat(
    "fleet",
    (FLEET_FILE,),
    lazy_opener("airflow_hops.extensions.fleet.serving.servable", "FleetServable"),
    ("onnxruntime",),
)
