"""Files of a ``statistics`` artifact: ``<split>/FeatureStats.pb`` and its JSON twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_hops.core.errors import ArtifactNotFound, UnreadableFile

STATISTICS_FILE = "FeatureStats.pb"
SUMMARY_FILE = "statistics.json"


def load_statistics(path: Path) -> Any:
    """Reads a ``FeatureStats.pb``: the whole data set first, then its slices.

    Raises:
        BadInput: the file does not exist, or is not a DatasetFeatureStatisticsList with a data set.

    Example:
        >>> import pyarrow as pa
        >>> from pathlib import Path
        >>> from airflow_hops import generate_statistics, load_statistics
        >>> made = generate_statistics(pa.table({"km": [733.0, 229.0]}))
        >>> _ = Path("FeatureStats.pb").write_bytes(made.SerializeToString())
        >>> load_statistics(Path("FeatureStats.pb")).datasets[0].num_examples
        2
    """
    from google.protobuf.message import DecodeError
    from tensorflow_metadata.proto.v0 import statistics_pb2

    statistics = statistics_pb2.DatasetFeatureStatisticsList()
    try:
        statistics.ParseFromString(path.read_bytes())
    except FileNotFoundError:
        raise ArtifactNotFound(path, ": there are no statistics") from None
    except DecodeError as error:
        raise UnreadableFile(path, f": not a DatasetFeatureStatisticsList ({error})") from None
    if not statistics.datasets:
        raise UnreadableFile(path, ": a DatasetFeatureStatisticsList without a data set")
    return statistics
