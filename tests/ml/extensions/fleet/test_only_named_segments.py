"""Whatever becomes of some segments, others keep their models bit by bit; and what skew names is trained."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import shops

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet.core.keys import check_keys
from airflow_hops.extensions.fleet.core.options import FleetSkewProperties
from airflow_hops.extensions.fleet.ml import selection
from airflow_hops.extensions.fleet.ml.fleet_files import OpenFleet

Train = Callable[..., Artifact]
Opened = Callable[[Artifact], OpenFleet]
Serve = Callable[[Artifact, int], None]
SHOPS = [f"shop {number}" for number in range(8)]


def skew_of(store: ArtifactStore, segments: Sequence[str], run_id: str) -> Artifact:
    with store.create(store.uri("tests", run_id, "watch", "fleet_skew"), "fleet_skew", Producer()) as writer:
        return writer.commit(properties=FleetSkewProperties("shops", 1, "drift", tuple(segments)).to_dict())


def with_rows(splits: dict[str, pa.Table], segments: Sequence[str], seed: int) -> dict[str, pa.Table]:
    """The splits with other rows of some shops."""
    others = shops.tables([(shop, 150) for shop in segments], seed=seed)
    chosen = pa.array(segments)
    return {
        name: pa.concat_tables([table.filter(pc.invert(pc.is_in(table["shop"], chosen))), others[name]])
        for name, table in splits.items()
    }


def models(fleet: OpenFleet) -> dict[str, Any]:
    return {key: (entry["state"], fleet.segment(key)[1]) for key, entry in fleet.entries.items()}


@pytest.mark.parametrize("seed", range(8))
def test_no_other_segment_is_touched(
    store: ArtifactStore, train: Train, opened: Opened, serve: Serve, run_stage: Callable[..., Any], seed: int
) -> None:
    chance = random.Random(seed)
    splits = shops.tables([(shop, 150) for shop in SHOPS])
    versions = [train(shops.write(store, splits), run_id="1")]
    serve(versions[0], 1)
    rows = [dict.fromkeys(SHOPS, 0)]  # which rows the models of each version have learnt
    present, refused, steps_kept = rows[0], dict[str, int](), 0
    for number in range(2, 9):
        served, run_id = versions[-1], f"{number}"
        earlier, named = models(opened(served)), sorted(chance.sample(SHOPS, chance.randint(1, 2)))
        step, learnt = ("rows", "only", "skew", "rollback", "promotion")[(number + seed) % 5], rows[-1]
        if step == "rollback":
            version = chance.randint(1, number - 1)
            fleet = run_stage(selection.run, kind="model", model_name="shops", segments=named, version=version)
            expected, after = models(opened(versions[version - 1])), models(opened(fleet))
            assert {shop: after[shop] for shop in named} == {shop: expected[shop] for shop in named}
            refused |= {shop: learnt[shop] for shop in named if earlier[shop] != after[shop]}
            learnt, allowed = {**learnt, **{shop: rows[version - 1][shop] for shop in named}}, {*named}
        else:
            splits = with_rows(splits, named, seed=100 * seed + number)
            present = {**present, **dict.fromkeys(named, number)}
            options: dict[str, Any] = {"only": named} if step == "only" else {}
            options |= {"skew": skew_of(store, named, run_id)} if step == "skew" else {}
            fleet = train(shops.write(store, splits, run_id=run_id), before=served, run_id=run_id, **options)
            is_kept = fleet.properties["fleet"]["encoding"] == "kept"
            steps_kept += is_kept
            changed = {shop for shop in SHOPS if present[shop] not in (learnt[shop], refused.get(shop))}
            allowed = {*named} if options else changed if is_kept else {*SHOPS}
            assert fleet.metrics["trained"] == len(allowed), step
            if step == "promotion" and is_kept:
                inputs, allowed = {"model": fleet}, {named[0]}
                fleet = run_stage(selection.run, kind="model", inputs=inputs, model_name="shops", segments=named[:1])
            learnt = {**learnt, **{shop: present[shop] for shop in allowed}}
        after = models(opened(fleet))
        assert {shop for shop in SHOPS if after[shop] != earlier[shop]} <= allowed, step
        versions.append(fleet)
        rows.append(learnt)
        serve(fleet, number)
    assert steps_kept >= 4


def test_skew_alone_says_what_is_trained(store: ArtifactStore, train: Train, opened: Opened) -> None:
    splits = shops.tables([(shop, 150) for shop in SHOPS])
    first = train(shops.write(store, splits))
    others = shops.write(store, with_rows(splits, SHOPS, seed=5), run_id="others")
    both = train(others, before=first, skew=skew_of(store, ["shop 2"], "one"), only=["shop 5"])
    changed = {shop for shop in SHOPS if models(opened(both))[shop] != models(opened(first))[shop]}
    assert (both.metrics["trained"], changed) == (2, {"shop 2", "shop 5"})
    with pytest.raises(BadInput, match="names no drifted segment: there is nothing to train"):
        train(others, before=first, skew=skew_of(store, [], "none"))
    with pytest.raises(BadInput, match="there is no fleet before"):
        train(others, skew=skew_of(store, ["shop 2"], "first"))
    with pytest.raises(BadInput, match="only names 'shop gone', which neither"):
        train(others, before=first, skew=skew_of(store, ["shop gone"], "gone"))


def test_a_million_keys_are_refused_with_their_number() -> None:
    keys = {f"visit {number}" for number in range(1_000_000)}
    with pytest.raises(BadInput, match="has 1,000,000 different values; expected keys of at most 20,000 segments"):
        check_keys("visit", keys, 20_000, keeps_look_alikes=False)
