"""Versions of a model by page: of the trainings, only those of the versions that are shown are read."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from world import path_of, write_artifact

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, record_uri, write_record
from airflow_hops.core.training.record import TrainingCurves, TrainingRecord, training_of, training_uri, write_training
from web.conftest import Api

pytestmark = pytest.mark.runtime

DAG, MODEL = "pages_training", "pages_model"
PATH = f"/api/dags/{DAG}/models/{MODEL}/versions"
VERSIONS = 7


@pytest.fixture
def versions(api: Api, whole_store: None) -> dict[int, str]:
    """A model whose versions were all deployed; the addresses of the records of their trainings, by version."""
    record, uris = ModelRecord(), {}
    for version in range(1, VERSIONS + 1):
        producer, properties = Producer(DAG, f"run {version}", "train"), {"train": "model:train"}
        model = write_artifact(api.store, "model", str(version), producer, properties=properties)
        run_id = training_of(api.store.manifest(model.uri))
        training = TrainingRecord(run_id, "train", "FINISHED", version).with_version(MODEL, version)
        write_training(api.store, DAG, training.with_metrics([("model.auc", version / 10, 0)]), TrainingCurves())
        uris[version] = training_uri(api.store, DAG, run_id)
        facts = {"fingerprint": model.fingerprint, "model": model.uri}
        record = ModelRecord(ServedVersion.of(model, version, "", 100), None, record.history)
        record = record.after("deployed", version, "a test", **facts)
    write_record(api.store, MODEL, record)
    return uris


def test_pages_of_versions_are_newest_first_and_without_gaps(api: Api, versions: dict[int, str]) -> None:
    pages = [api.get(f"{PATH}?limit=3&offset={offset}").json() for offset in (0, 3, 6, 9)]
    assert {page["total_entries"] for page in pages} == {VERSIONS}
    assert [[each["version"] for each in page["entries"]] for page in pages] == [[7, 6, 5], [4, 3, 2], [1], []]
    entries: list[dict[str, Any]] = [each for page in pages for each in page["entries"]]
    assert [each["metrics"]["model.auc"] for each in entries] == [each["version"] / 10 for each in entries]
    assert [each["trained_by"]["run_id"] in versions[each["version"]] for each in entries] == [True] * VERSIONS
    hidden = api.get(PATH, "only:pages").status_code
    assert hidden == 403


def test_page_of_versions_reads_only_its_trainings(api: Api, versions: dict[int, str]) -> None:
    api.store.write_text(versions[2], "no JSON")
    api.store.remove_text(versions[3])
    shutil.rmtree(path_of(api.store.address(Producer(DAG, "run 4", "train"), "model")))
    first, second = (api.get(f"{PATH}?limit=3&offset={offset}").json() for offset in (0, 3))
    assert {each["unmeasured"] for each in first["entries"]} == {None}
    why = {each["version"]: each["unmeasured"] for each in second["entries"]}
    assert why[2].startswith(f"{versions[2]}: not what a training writes")
    assert why[3] == f"there is no record {versions[3]} of its training" and why[4].endswith(
        "/model was deleted from the store"
    )
    assert [(each["metrics"], each["trained_by"]) for each in second["entries"]] == [({}, None)] * 3
    api.store.remove_text(record_uri(api.store, MODEL))
    assert api.get(PATH).json()["total_entries"] == 0


def test_training_without_epochs_has_no_curves(api: Api, versions: dict[int, str]) -> None:
    run_id = api.get(f"{PATH}?limit=1").json()["entries"][0]["trained_by"]["run_id"]
    curves = f"/api/dags/{DAG}/training-runs/{run_id}/curves"
    assert api.get(curves).json() == []
    api.store.remove_text(versions[VERSIONS].replace(".json", ".curves.json"))
    api.refused(curves, 410, "was deleted")
