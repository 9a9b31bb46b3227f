"""A training on examples of an object store: its step downloads no split."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.contract.artifacts import Artifact, Producer
from airflow_hops.contract.protocol import Output, StepSpec
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.store import ArtifactStore
from airflow_hops.store.private_folders import cache_folder

pytestmark = pytest.mark.runtime
STEPS = (str(Path(__file__).parent / "steps"),)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, Any]]]:
    """A bucket of an S3-compatible service."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="examples")
        credentials = {"key": "test", "secret": "test"}
        yield "s3://examples/flights", {"endpoint_url": endpoint, "use_listings_cache": False, **credentials}
    finally:
        server.stop()


def test_ranks_read_the_splits_of_a_remote_store_by_themselves(
    bucket: tuple[str, dict[str, Any]],
    runtime: Path,
    warm_launcher: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri, storage_options = bucket
    store = ArtifactStore(uri, storage_options=storage_options, local_cache=str(tmp_path / "mine"))
    monkeypatch.setenv("HOPS_LOCAL_CACHE", str(tmp_path / "cache"))
    extra = {"store": uri, "storage_options": storage_options, "runtime": str(runtime)}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))

    def run(entry: str, kind: str, params: dict[str, Any], inputs: dict[str, Any]) -> Artifact:
        producer = Producer("remote", "run", kind)
        output = Output(store.address(producer, kind), kind)
        spec = StepSpec(kind, entry, params=params, inputs=inputs, output=output, producer=producer, code_paths=STEPS)
        return Artifact.from_dict(RuntimeHook().run(spec, launcher=warm_launcher, cache=False).value)

    rows = {"train": [200, 3, 98], "eval": [60]}
    examples = run("transformed_examples:write", "transformed_examples", {"rows": rows}, {})
    params = {"train": "training_functions:train", "params": {"epochs": 1}, "np": 2}
    model = run("airflow_hops.runtime.train:run", "model", params, {"examples": (examples,)})
    assert {split: counts.rows_out for split, counts in model.rows.items()} == {"train": 301, "eval": 60}
    downloaded = {path.name for path in (tmp_path / "cache").rglob("*.parquet")}
    assert downloaded == set(), "the step has downloaded splits"
    fetched = [path for path in (cache_folder() / "files").iterdir() if not path.name.startswith(".")]
    assert len(fetched) == 4
