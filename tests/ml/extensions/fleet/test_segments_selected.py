"""Promotion and rollback of single segments of a served fleet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import shops

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet.ml import selection
from airflow_hops.extensions.fleet.ml.fleet_files import OpenFleet
from airflow_hops.ml.models.loaded_models import LoadedModel, model_folder

Train = Callable[..., Artifact]
Opened = Callable[[Artifact], OpenFleet]
SIZES = [(f"shop {number}", 300) for number in range(6)]


@pytest.fixture
def select(run_stage: Callable[..., Any]) -> Callable[..., Artifact]:
    def run(model: Artifact | None = None, **options: Any) -> Artifact:
        inputs = {} if model is None else {"model": model}
        return run_stage(selection.run, kind="model", inputs=inputs, model_name="shops", **options)

    return run


@pytest.fixture
def versions(store: ArtifactStore, train: Train, serve: Callable[[Artifact, int], None]) -> tuple[Artifact, Artifact]:
    """Two versions, of which the second serves; all rows of shops 1 and 2 are others in it."""
    splits = shops.tables(SIZES)
    first = train(shops.write(store, splits, run_id="one"), run_id="one")
    serve(first, 1)
    others = shops.tables([(shop, 300 if shop not in ("shop 1", "shop 2") else 280) for shop, _ in SIZES])
    second = train(shops.write(store, others, run_id="two"), run_id="two", before=first)
    serve(second, 2)
    return first, second


def models(fleet: OpenFleet) -> dict[str, Any]:
    return {segment: fleet.segment(segment)[1] for segment in fleet.entries}


def test_rollback_of_a_segment_touches_no_other(
    store: ArtifactStore,
    versions: tuple[Artifact, Artifact],
    select: Callable[..., Artifact],
    opened: Opened,
    train: Train,
    serve: Callable[[Artifact, int], None],
) -> None:
    first, second = map(opened, versions)
    earlier, served = models(first), models(second)
    assert earlier["shop 1"] != served["shop 1"] and earlier["shop 0"] == served["shop 0"]
    selected = select(segments=["shop 1"], version=1)
    third = opened(selected)
    assert models(third) == {**served, "shop 1": earlier["shop 1"]}
    assert third.entries["shop 1"]["reason"].startswith("rolled back to the model of version 1; ")
    assert third.fleet.payload(third.fleet.description.pooled) == second.fleet.payload(second.fleet.description.pooled)
    assert LoadedModel(model_folder(store, selected), "serving_default").outputs.keys() == {"prediction"}
    serve(selected, 3)
    uri = store.manifest(versions[1].uri).inputs["examples"][0].uri
    examples = store.manifest(uri).reference(uri)
    again = train(examples, run_id="three", before=selected)
    assert again.metrics["trained"] == 0  # on the rows that made the refused model
    assert models(opened(again))["shop 1"] == earlier["shop 1"]
    promoted = select(versions[1], segments=["shop 1", "shop 2"])
    assert models(opened(promoted))["shop 1"] == earlier["shop 1"]


def test_only_named_segments_are_promoted(
    versions: tuple[Artifact, Artifact],
    select: Callable[..., Artifact],
    opened: Opened,
    serve: Callable[[Artifact, int], None],
) -> None:
    serve(versions[0], 3)
    first, second = (models(opened(each)) for each in versions)
    chosen = select(versions[1], segments=["shop 2"])
    assert models(opened(chosen)) == {**first, "shop 2": second["shop 2"]}
    assert chosen.metrics["changed"] == 1
    everything = select(versions[1])
    assert models(opened(everything)) == second and everything.metrics["changed"] == 2


def test_fleets_that_differ_are_refused(
    store: ArtifactStore, train: Train, versions: tuple[Artifact, Artifact], select: Callable[..., Artifact]
) -> None:
    other = train(shops.write(store, shops.tables(SIZES, seed=9), run_id="other"), run_id="other")
    with pytest.raises(BadInput, match="has another encoding than the served fleet"):
        select(other, segments=["shop 1"])
    narrow = train(shops.write(store, shops.tables(SIZES), run_id="narrow"), run_id="narrow", columns=["price"])
    with pytest.raises(BadInput, match=r"has another (encoding|inputs) than"):
        select(narrow, segments=["shop 1"])
    with pytest.raises(BadInput, match="segments has 'shop 99', which the fleet"):
        select(versions[1], segments=["shop 99"])
    with pytest.raises(BadInput, match="at least one"):
        select(versions[1], segments=[])
