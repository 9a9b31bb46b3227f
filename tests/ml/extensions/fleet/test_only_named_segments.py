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
from airflow_hops.extensions.fleet.core.options import FleetSkewProperties
from airflow_hops.extensions.fleet.core.packs import check_keys
from airflow_hops.extensions.fleet.ml import selection

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


@pytest.mark.parametrize("seed", range(8))
def test_no_other_segment_is_touched(
    store: ArtifactStore, train: Any, opened: Any, serve: Any, run_stage: Callable[..., Any], seed: int
) -> None:
    chance = random.Random(seed)
    splits = shops.tables([(shop, 150) for shop in SHOPS])
    versions = [train(splits)]
    serve(versions[0], 1)
    rows = [dict.fromkeys(SHOPS, 0)]  # which rows the models of each version have learnt
    present, refused, steps_kept = rows[0], dict[str, int](), 0
    for number in range(2, 9):
        served, run_id = versions[-1], f"{number}"
        earlier, named = shops.models(opened(served)), sorted(chance.sample(SHOPS, chance.randint(1, 2)))
        step, learnt = ("rows", "only", "skew", "rollback", "promotion")[(number + seed) % 5], rows[-1]
        if step == "rollback":
            version = chance.randint(1, number - 1)
            fleet = run_stage(selection.run, kind="model", model_name="shops", segments=named, version=version)
            expected, after = shops.models(opened(versions[version - 1])), shops.models(opened(fleet))
            assert {shop: after[shop] for shop in named} == {shop: expected[shop] for shop in named}
            refused |= {shop: learnt[shop] for shop in named if earlier[shop] != after[shop]}
            learnt, allowed = {**learnt, **{shop: rows[version - 1][shop] for shop in named}}, {*named}
        else:
            splits = with_rows(splits, named, seed=100 * seed + number)
            present = {**present, **dict.fromkeys(named, number)}
            options: dict[str, Any] = {"only": named} if step == "only" else {}
            options |= {"skew": skew_of(store, named, run_id)} if step == "skew" else {}
            fleet = train(splits, before=served, **options)
            is_kept = fleet.properties["fleet"]["encoding"] == "kept"
            steps_kept += is_kept
            changed = {shop for shop in SHOPS if present[shop] not in (learnt[shop], refused.get(shop))}
            allowed = {*named} if options else changed if is_kept else {*SHOPS}
            assert fleet.metrics["trained"] == len(allowed), step
            if step == "promotion" and is_kept:
                inputs, allowed = {"model": fleet}, {named[0]}
                fleet = run_stage(selection.run, kind="model", inputs=inputs, model_name="shops", segments=named[:1])
            learnt = {**learnt, **{shop: present[shop] for shop in allowed}}
        after = shops.models(opened(fleet))
        assert {shop for shop in SHOPS if after[shop] != earlier[shop]} <= allowed, step
        versions.append(fleet)
        rows.append(learnt)
        serve(fleet, number)
    assert steps_kept >= 4


def test_skew_and_only_say_what_is_trained(store: ArtifactStore, train: Any, opened: Any) -> None:
    splits = shops.tables([(shop, 150) for shop in SHOPS])
    first = train(splits)
    others = shops.write(store, with_rows(splits, SHOPS, seed=5), run_id="others")
    both = train(others, before=first, skew=skew_of(store, ["shop 2"], "one"), only=["shop 5"])
    old, new = opened(first), opened(both)
    changed = {shop for shop in SHOPS if shops.models(new)[shop] != shops.models(old)[shop]}
    assert (both.metrics["trained"], changed) == (2, {"shop 2", "shop 5"})
    assert new.fleet.description == old.fleet.description
    for champion, options, message in (
        (first, {"skew": skew_of(store, [], "none")}, "names no drifted segment: there is nothing to train"),
        (first, {"skew": skew_of(store, ["shop gone"], "gone")}, "only names 'shop gone', which neither"),
        (first, {"only": ["shop 99"]}, "only names 'shop 99', which neither"),
        (None, {"skew": skew_of(store, ["shop 2"], "first")}, "there is no fleet before"),
        (None, {"only": ["shop 2"]}, "there is no fleet before"),
    ):
        with pytest.raises(BadInput, match=message):
            train(others, before=champion, **options)


def test_a_million_keys_are_refused_with_their_number() -> None:
    keys = {f"visit {number}" for number in range(1_000_000)}
    with pytest.raises(BadInput, match="has 1,000,000 different values; expected keys of at most 20,000 segments"):
        check_keys("visit", keys, 20_000, keeps_look_alikes=False)
