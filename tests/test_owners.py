"""Owners of names that DAGs share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.owners import claim, owned_names, owners_of, set_owners


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path))


def test_first_of_many_claims_wins(store: ArtifactStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        owners = list(pool.map(lambda number: claim(store, "datasets", "flights", f"dag_{number}"), range(40)))
    (owner,) = owners[0]
    assert owners == [[owner]] * 40
    assert owned_names(store, "datasets") == ["flights"]
    assert owners_of(store, "datasets", "") == owners_of(store, "datasets", "others") == (), (
        "older artifacts have no name"
    )


def test_named_owners_replace_the_first_and_are_recorded(store: ArtifactStore) -> None:
    claim(store, "datasets", "flights", "training")
    assert set_owners(store, "datasets", "flights", ["a", "b"], "ann", "one team")
    assert not set_owners(store, "datasets", "flights", ["a", "b"], "bob", "again")
    assert claim(store, "datasets", "flights", "training") == owners_of(store, "datasets", "flights") == ["a", "b"]
    first, last = store.read_json(store.internal("_owners", "datasets", "flights.json"))
    assert (first["owners"], first["by"]) == (["training"], "DAG training")
    assert (last["owners"], last["by"], last["why"]) == (["a", "b"], "ann", "one team")
    with pytest.raises(BadInput, match=r"'fligths' has no owner; .* Names with an owner: flights"):
        set_owners(store, "datasets", "fligths", ["a"], "ann", "one team")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"owners": ["a"]}', "[1]", '[{"at": "", "owners": "a", "by": ""}]', '[{"owners": ["a"]}]']
)
def test_damaged_record_is_named(store: ArtifactStore, text: str) -> None:
    uri = store.internal("_owners", "datasets", "flights.json")
    store.write_text(uri, text)
    with pytest.raises(BadInput, match=r"_owners/datasets/flights\.json"):
        claim(store, "datasets", "flights", "training")
    assert store.read_text(uri) == text
