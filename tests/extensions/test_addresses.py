"""Ids that differ never share an address, a label or a name, and an address leads back to its ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_hops.core.artifacts.artifact import MOST_BYTES, Producer, is_segment, name_in, segment
from airflow_hops.core.capture_layout import folder_name
from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.model_record import record_uri
from airflow_hops.core.retraining.decisions import DecisionLog
from airflow_hops.core.schema.history import frozen_name
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.owners import owned_names
from airflow_hops.core.training.record import trainings_uri
from airflow_hops.extensions.experiments.core.studies import app_id, study_folder
from airflow_hops.extensions.kubernetes.runner.manifests import labels_of
from airflow_hops.runner.progress import _address as progress_uri

STORE = ArtifactStore("memory://store")
_CHARACTERS = "aZ9_.-+:~!@% é天\\/"
_PARTS = [
    "..",
    "_frozen",
    "_state",
    "tasks",
    "jobs",
    "history",
    "Experiments",
    "7E",
    ".staging-",
    "!3A",
    "%2F",
]
_PARTS += ["notebook", "uses.json", "manual__2026-01-01T00:00:00+00:00", "x" * 63, "é" * 40]
PIECES = [*_CHARACTERS, *_PARTS]
TEXTS = st.lists(st.sampled_from(PIECES) | st.characters(), min_size=1, max_size=4).map("".join)
_OF_KEYS = [each for each in PIECES if re.fullmatch(r"[\w.-]+", each)]
KEYS = st.lists(st.sampled_from(_OF_KEYS), min_size=1, max_size=4).map("".join)
"""Ids of DAGs and tasks, in which Airflow accepts letters and digits of any language, ``_``, ``-`` and ``.``."""


@dataclass(frozen=True)
class Ids:
    """Ids of what has an address."""

    producer: Producer
    model: str
    text: str


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Ids, Ids]:
    """Two sets of ids that differ in little."""
    names = draw(st.lists(KEYS, min_size=2, max_size=2, unique=True)) * 2
    runs = draw(st.lists(TEXTS, min_size=1, max_size=2)) * 2
    numbers = st.sampled_from([-1, 0, 1, 11])

    def one(number: int) -> Ids:
        dag, task = draw(st.sampled_from([names[:2], names[1:3], names[:1] * 2]))
        producer = Producer(dag, runs[number], task, draw(numbers), iteration=draw(numbers))
        return Ids(producer, draw(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,9}", fullmatch=True)), draw(TEXTS))

    first = one(0)
    return first, draw(st.sampled_from([one(1), replace(first, producer=one(1).producer), replace(first, text="z_1")]))


P = Producer
ADDRESSES: dict[str, tuple[Callable[[Ids], str], Callable[[Ids], Hashable]]] = {
    "artifact": (lambda i: STORE.address(i.producer, "model"), lambda i: i.producer),
    "run": (
        lambda i: STORE.uri(i.producer.dag_id, i.producer.run_id),
        lambda i: (i.producer.dag_id, i.producer.run_id),
    ),
    "frozen": (lambda i: STORE.frozen_schema(i.producer.dag_id, i.text), lambda i: (i.producer.dag_id, i.text)),
    "progress": (lambda i: progress_uri(STORE, i.producer), lambda i: i.producer),
    "decisions": (
        lambda i: DecisionLog(STORE, i.producer).folder,
        lambda i: (i.producer.dag_id, i.producer.task),
    ),
    "trainings": (lambda i: trainings_uri(STORE, i.producer.dag_id), lambda i: i.producer.dag_id),
    "record": (lambda i: record_uri(STORE, i.model), lambda i: i.model),
    "study": (
        lambda i: study_folder(STORE, i.producer.dag_id, i.producer.task, i.text).uri,
        lambda i: (i.producer.dag_id, i.producer.task, i.text),
    ),
    "experiment": (lambda i: STORE.internal("Experiments", app_id(i.producer)), lambda i: i.producer),
    "captured": (lambda i: folder_name(i.model), lambda i: i.model),
    "labels": (lambda i: str(labels_of(i.producer, "entry", "store")["airflow-hops/step"]), lambda i: i.producer),
}


@given(pairs())
@example((Ids(P("a", "z:1", "t"), "m", "t"), Ids(P("a", "z_1", "t"), "m", "t")))
@example((Ids(P("a", "_frozen", "t"), "m", "t"), Ids(P("a", "r", "t"), "m", "t")))
@example((Ids(P("_state", "jobs", "t"), "m", "t"), Ids(P("jobs", "a", "t"), "m", "t")))
@example((Ids(P("a.b", "c", "t"), "m", "t"), Ids(P("a", "b.c", "t"), "m", "t")))
@example((Ids(P("Experiments", "a@r@t", "run.1"), "m", "t"), Ids(P("a", "r", "t"), "m", "t")))
@settings(max_examples=200)
def test_addresses_of_different_ids_differ(ids: tuple[Ids, Ids]) -> None:
    try:
        made = [(name, id_of(each), address(each)) for each in ids for name, (address, id_of) in ADDRESSES.items()]
    except BadInput:  # too long
        return
    addresses: dict[str, tuple[str, Hashable]] = {}
    for name, id_of, address in made:
        assert addresses.setdefault(address, (name, id_of)) == (name, id_of), address
        assert "/../" not in f"{address}/" and "/./" not in address and "%" not in address.removeprefix("%2E")


@given(pairs())
@settings(max_examples=200)
def test_an_address_leads_back_to_its_ids(ids: tuple[Ids, Ids]) -> None:
    producer, text = ids[0].producer, ids[0].text
    try:
        uri, frozen = STORE.address(producer, "model"), STORE.frozen_schema(producer.dag_id, text)
    except BadInput:
        return
    *_, dag, run, task, _ = uri.split("/")
    assert Producer.of_task(*map(name_in, (dag, run, task))) == producer
    assert STORE.dag_of(uri) == STORE.dag_of(frozen) == producer.dag_id
    assert frozen_name(frozen) == (producer.dag_id, text)
    assert STORE.place(uri) == STORE.place(uri.removeprefix(f"{STORE.root}/")) == uri
    assert STORE.dag_of(STORE.internal("_datasets", producer.dag_id)) == ""


@given(TEXTS | st.text(min_size=1, max_size=200))
@settings(max_examples=200)
def test_a_segment_leads_back_to_its_name(name: str) -> None:
    try:
        made = segment(name)
    except BadInput:
        assert len(name.encode(errors="surrogatepass")) * 3 > MOST_BYTES
        return
    assert name_in(made) == name and is_segment(made) and not made.startswith(("_", "."))
    assert segment("scheduled__2026-01-01T00:00:00+00:00") == "scheduled__2026-01-01T00~00~00+00~00"


@pytest.mark.parametrize("name", ["x" * 236, "é" * 118, "~" * 78])
def test_files_with_the_longest_names_can_be_written(name: str, store: ArtifactStore) -> None:
    store.write_text(f"{store.internal('_owners', 'dag', name)}.json", "[]")
    assert owned_names(store, "dag") == [name]
    with pytest.raises(BadInput, match=r"has 2\d\d bytes as the name of a folder; expected at most 236; shorten it"):
        store.uri(name + "xxx")
