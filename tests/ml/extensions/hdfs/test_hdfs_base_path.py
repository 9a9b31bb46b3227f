"""A model base path and captured requests in a real HDFS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hdfs_cluster import HdfsCluster
from server_process import ServerProcess
from waiting import wait_for

from airflow_hops.ml.model_server.version_folders import RemoteFolders
from airflow_hops.ml.monitoring.captured.requests import CapturedRequests
from tests.ml.serving.test_remote_base_path import POLL, copies, score

pytestmark = pytest.mark.spark


@pytest.fixture
def hdfs(tmp_path: Path) -> Iterator[HdfsCluster]:
    (tmp_path / "hdfs").mkdir()
    with HdfsCluster(tmp_path / "hdfs") as cluster:
        yield cluster


def test_models_are_served_from_hdfs_and_requests_captured_there(
    hdfs: HdfsCluster, start_server: Callable[..., ServerProcess], saved_models: Path, tmp_path: Path
) -> None:
    def publish(version: int) -> None:
        RemoteFolders(f"{hdfs.url}/models", {}).publish(
            saved_models / "flights" / str(version), "flights", version, f"flights-{version}"
        )

    publish(1)
    flags = {
        "model_base_path": f"{hdfs.url}/models/flights",
        "model_cache_path": tmp_path / "cache",
        "capture_base_path": f"{hdfs.url}/captured",
        "capture_spool_path": tmp_path / "spool",
    }
    server = start_server(model_name="flights", **flags, **POLL)
    first = score(server)
    publish(2)
    server.wait_for_versions("flights", {2: "AVAILABLE", 1: "END"})
    assert (first, score(server), copies(tmp_path / "cache")) == (1000.0, 2000.0, ["2"])

    assert server.post("/v1/capture:flush", b"")["flushed"] is True
    captured = CapturedRequests(f"{hdfs.url}/captured", "flights")
    files = captured.fetch([*captured.names(1), *captured.names(2)], tmp_path / "scratch")
    assert [pq.read_table(file.path).num_rows for file in files] == [1, 1]

    hdfs.kill("datanode")
    with pytest.raises(OSError, match=f"'{hdfs.url}/models/flights/3/"):
        publish(3)
    assert score(server) == 2000.0
    hdfs.start("datanode")
    publish(3)
    wait_for(lambda: server.available("flights") == [3], server.log)
    score(server)
    assert server.post("/v1/capture:flush", b"")["flushed"] is True
    assert (len(captured.names(2)), len(captured.names(3))) == (2, 1), server.log()
    assert server.terminate() == 0
