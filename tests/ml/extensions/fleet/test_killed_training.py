"""A killed training: what was trained is not trained again, and the fleet is that of a training without a kill."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import shops

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet.ml import stage
from airflow_hops.extensions.fleet.ml.columns import row_hashes

SIZES = [(f"shop {number:02}", 203 + 10 * number) for number in range(24)]


def _run(train: Callable[..., Artifact], examples: Artifact, environment: dict[str, str]) -> None:
    os.setsid()
    os.environ.update(environment)
    train(examples, model="segment_models:ridge", run_id="killed")


def _labels_of_four_fifths(table: pa.Table, shop: str) -> str:
    rows = table.filter(pc.equal(table["shop"], shop)).drop(["shop"])
    rows = rows.select(sorted(rows.column_names))
    labels = rows["label"].to_numpy()[row_hashes(rows) % 5 != 0]
    return f"{labels.sum():.6f}"


@pytest.mark.parametrize("after", [1, 9, 30])
def test_retry_trains_only_what_was_not_finished(
    store: ArtifactStore, train: Callable[..., Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(stage, "_PART_ROWS", 900)
    splits = shops.tables(SIZES)
    examples = shops.write(store, splits)
    expected = train(examples, model="segment_models:ridge", run_id="whole")
    counted = tmp_path / "counted"
    counted.mkdir()

    def fits() -> Counter[str]:
        return Counter(path.name.partition("_")[0] for path in counted.iterdir())

    environment = {"COUNTED": str(counted), "KILLED_AFTER": str(after)}
    process: Any = multiprocessing.get_context("fork").Process(target=_run, args=(train, examples, environment))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    uri = store.uri("tests", "killed", "train", "model")
    assert not store.exists(uri)
    state = store.internal("_state", "checkpoints", "tests", "killed")
    finished = [path for path in Path(store.files.path(state)).rglob("*") if path.is_file()]  # type: ignore[attr-defined]
    monkeypatch.setenv("COUNTED", str(counted))
    whole = train(examples, model="segment_models:ridge", run_id="killed")
    assert not any(path.exists() for path in finished)
    for name in ("fleet/packs/000.bin", "statistics/000.json"):
        assert (store.local(whole) / name).read_bytes() == (store.local(expected) / name).read_bytes()
    assert len(whole.properties["fleet"]["deciles"]) == 10 and whole.metrics["segments"] == len(SIZES)
    # Each shop's model is trained once on four fifths of its rows; twice only if its part was not finished.
    by_shop = {shop: fits()[_labels_of_four_fifths(splits["train"], shop)] for shop, _ in SIZES}
    assert min(by_shop.values()) == 1 and max(by_shop.values()) <= 2
    in_flight = sum(count == 2 for count in by_shop.values())
    assert in_flight <= 2 * 5  # the shops of two parts
    if after == 30:
        assert len(finished) >= 2
