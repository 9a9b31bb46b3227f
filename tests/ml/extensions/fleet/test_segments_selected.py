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
from airflow_hops.ml.models.loaded_models import LoadedModel, model_folder

SIZES = [(f"shop {number}", 300) for number in range(6)]


@pytest.fixture
def select(run_stage: Callable[..., Any]) -> Callable[..., Artifact]:
    def run(model: Artifact | None = None, **options: Any) -> Artifact:
        inputs = {} if model is None else {"model": model}
        return run_stage(selection.run, kind="model", inputs=inputs, model_name="shops", **options)

    return run


@pytest.fixture
def versions(train: Any, serve: Callable[[Artifact, int], None]) -> tuple[Artifact, Artifact]:
    """Two versions, of which the second serves; all rows of shops 1 and 2 are others in it."""
    first = train(shops.tables(SIZES))
    serve(first, 1)
    others = shops.tables([(shop, 300 if shop not in ("shop 1", "shop 2") else 280) for shop, _ in SIZES])
    second = train(others, before=first)
    serve(second, 2)
    return first, second


def test_rolled_back_segment_keeps_its_model(
    store: ArtifactStore, versions: tuple[Artifact, Artifact], select: Any, opened: Any, train: Any, serve: Any
) -> None:
    """Later runs on the refused rows, and a promotion; test_only_named_segments.py holds the other segments."""
    first, second = map(opened, versions)
    earlier = shops.models(first)["shop 1"]
    assert earlier != shops.models(second)["shop 1"]
    selected = select(segments=["shop 1"], version=1)
    third = opened(selected)
    assert third.entries["shop 1"]["reason"].startswith("rolled back to the model of version 1; ")
    assert third.fleet.payload(third.fleet.description.pooled) == second.fleet.payload(second.fleet.description.pooled)
    assert LoadedModel(model_folder(store, selected), "serving_default").outputs.keys() == {"prediction"}
    serve(selected, 3)
    uri = store.manifest(versions[1].uri).inputs["examples"][0].uri
    again = train(store.manifest(uri).reference(uri), before=selected)
    assert again.metrics["trained"] == 0
    for later in (again, select(versions[1], segments=["shop 1", "shop 2"])):
        assert shops.models(opened(later))["shop 1"] == earlier


def test_only_named_segments_are_promoted(
    versions: tuple[Artifact, Artifact], select: Any, opened: Any, serve: Any
) -> None:
    serve(versions[0], 3)
    first, second = (shops.models(opened(each)) for each in versions)
    chosen, everything = select(versions[1], segments=["shop 2"]), select(versions[1])
    assert shops.models(opened(chosen)) == {**first, "shop 2": second["shop 2"]}
    assert shops.models(opened(everything)) == second
    assert (chosen.metrics["changed"], everything.metrics["changed"]) == (1, 2)


def test_fleets_that_differ_are_refused(train: Any, versions: tuple[Artifact, Artifact], select: Any) -> None:
    other = train(shops.tables(SIZES, seed=9))
    narrow = train(shops.tables(SIZES), columns=["price"])
    for fleet, segments, message in (
        (other, ["shop 1"], "has another encoding than the served fleet"),
        (narrow, ["shop 1"], r"has another (encoding|inputs) than"),
        (versions[1], ["shop 99"], "segments has 'shop 99', which the fleet"),
        (versions[1], [], "at least one"),
    ):
        with pytest.raises(BadInput, match=message):
            select(fleet, segments=segments)
