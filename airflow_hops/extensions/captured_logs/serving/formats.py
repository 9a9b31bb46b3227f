"""The format of an adopted model."""

from airflow_hops.extensions.captured_logs.core.source import ENDPOINT_FILE
from airflow_hops.serving.models.formats import ModelFormat, lazy_opener

ENDPOINT = ModelFormat(
    "endpoint",
    (ENDPOINT_FILE,),
    lazy_opener("airflow_hops.extensions.captured_logs.serving.endpoint", "EndpointServable"),
)
