"""Real data from one organisation to the pipeline of another: the commands, and the source of an ingest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.sharing.core.search import search
from airflow_hops.extensions.sharing.core.settings import KEY_NAME
from airflow_hops.extensions.sharing.triggers import DatasetTrigger
from airflow_hops.operators import IngestOperator
from airflow_hops.runner.runtime import RuntimeHook
from tests.extensions.sharing.organisations import ROWS, Organisation, make_snapshot

pytestmark = [pytest.mark.runtime, pytest.mark.server]
Make = Callable[..., Organisation]
REF, LICENCE = "north/flights@1", "CC-BY-4.0"


@pytest.fixture
def two(
    organisation: Make, as_organisation: Callable[[Organisation], None], hops: Any
) -> tuple[Organisation, Organisation]:
    """Two organisations, the first of which has published its flights by the command."""
    north, south = organisation("north"), organisation("south")
    snapshot = make_snapshot(north)
    as_organisation(north)
    code, output, error = hops("datasets", "keys", "--trust", f"south={south.key}", "--catalogue", south.catalogue)
    assert code == 0, error
    assert south.key in output.replace("\n", "") or "south" in output
    code, output, error = hops(
        "datasets", "publish", snapshot.uri, "--name", "flights", "--licence", "CC-BY-4.0",
        "--description", "Flights from New York.", "--sample-rows", "3",
    )  # fmt: skip
    assert code == 0, error
    assert "north/flights@1: 2010 rows" in output
    south.trust(north)
    north.start()
    south.start()
    as_organisation(south)
    return north, south


def test_commands_find_preview_and_fetch(two: tuple[Organisation, Organisation], hops: Any) -> None:
    _, south = two
    code, output, error = hops("datasets", "show", "flights@1")
    assert code == 0, error
    (dataset,) = search(south.records.datasets(), "flights.delay delay.mean>10 rows>2000")
    assert (str(dataset.ref), dataset.entry.rows, dataset.entry.licence) == (REF, 2010, LICENCE)
    assert search(south.records.datasets(), "delay.mean>1000") == []
    with pytest.raises(BadInput, match="'much' is not a number"):
        search(south.records.datasets(), "rows>much")
    preview = json.loads(output)["preview"]
    assert preview["types"]["flights"]["at"] == "timestamp[us, tz=UTC]"
    assert preview["statistics"]["flights"]["features"]["delay"]["missing"] == ROWS // 10
    assert 'name: "dest"' in preview["schema"]["flights"]
    assert len(preview["sample"]["flights"]["rows"]) == 3
    assert not south.fetched(REF).exists()
    assert preview["card"] == "Flights from New York."
    code, output, error = hops("datasets", "download", "flights@1")
    assert code == 0, error
    assert pq.read_table(south.fetched(REF) / "flights").num_rows == ROWS
    assert hops("datasets", "remove", REF)[0] == 0
    assert not south.fetched(REF).exists()
    assert "none of that name" in hops("datasets", "remove", REF)[2]


def test_a_name_belongs_to_the_dag_whose_artifact_was_published_first(
    organisation: Make, as_organisation: Callable[[Organisation], None], hops: Any
) -> None:
    north = organisation("north")
    as_organisation(north)
    command = ("--name", "flights", "--licence", "CC0-1.0", "--description", "Flights.")

    def publish(dag_id: str) -> tuple[int, str, str]:
        return hops("datasets", "publish", make_snapshot(north, dag_id=dag_id).uri, *command)

    assert publish("flights_training")[0] == 0
    code, _, error = publish("others")
    assert code == 1
    assert "data set 'flights' belongs to DAG 'flights_training', and this is DAG 'others'" in error
    assert "airflow hops datasets owners flights DAG ..." in error
    assert [dataset.entry.version for dataset in north.records.own()] == [1]
    assert hops("datasets", "unpublish", "flights@1")[0] == 0
    assert "is not published" in hops("datasets", "unpublish", "flights@1")[2]
    assert publish("others")[0] == 1  # the name stays
    code, output, error = hops("datasets", "owners", "flights", "flights_training", "others", "--reason", "one team")
    assert (code, output) == (0, "'flights' belongs to flights_training, others now.\n"), error
    assert "north/flights@2" in publish("others")[1]  # numbers continue
    (row,) = json.loads(hops("datasets", "owners", "--output", "json")[1])
    assert row == {"name": "flights", "owners": "flights_training, others"}


def task(**arguments: Any) -> IngestOperator:
    with DAG("south_training", schedule=None):
        return IngestOperator(task_id="ingest", **arguments)


class Context(dict[str, Any]):
    """A context of an operator outside a run."""

    def __init__(self, operator: IngestOperator) -> None:
        ti = _Instance()
        super().__init__(ti=ti, dag=_Dag(), triggering_asset_events=None, outlet_events=_Events())


class _Instance:
    dag_id, run_id, task_id, map_index, try_number = "south_training", "run-1", "ingest", -1, 1
    bundle_instance = None

    def xcom_pull(self, **keywords: Any) -> None:
        """There was no run before."""


class _Dag:
    fileloc = __file__
    doc_md = None


class _Events(dict[Any, Any]):
    def __missing__(self, key: Any) -> Any:
        return type("Event", (), {"extra": None})()


async def events(trigger: DatasetTrigger) -> dict[str, Any]:
    return await trigger.wait()


def run_deferred(operator: IngestOperator, waits: list[str]) -> Any:
    """Runs a task as worker and triggerer would, from deferral to deferral, which are appended to ``waits``."""
    import asyncio

    resumed, event, more = operator.execute, None, {}
    while True:
        context: Any = Context(operator)
        try:
            return resumed(context) if event is None else operator.resume(context, event, **more)
        except TaskDeferred as deferred:
            path, arguments = deferred.trigger.serialize()
            assert path == "airflow_hops.extensions.sharing.triggers.DatasetTrigger"
            waits.append(arguments["wants"])
            event, more = asyncio.run(events(DatasetTrigger(**arguments))), deferred.kwargs or {}


REJECTED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"licences": ["CC0-1.0"]}, "its licence is 'CC-BY-4.0'; the task accepts 'CC0-1.0'"),
    ({"columns": ["speed"]}, "it has no column 'speed'; it has id, at, delay, dest"),
    ({"schema": {"delay": "int64"}}, "column 'delay' is float64, but the source's schema says int64"),
    ({"uri": "dataset://flights@1#trains"}, "has the tables flights, planes"),
    ({"uri": "dataset://flights@7"}, "no catalogue of a trusted organisation has it; they have north/flights@1"),
    ({"uri": "dataset://flights"}, "expected [ORGANISATION/]NAME@VERSION"),
)


def test_an_ingest_is_rejected_before_the_download_or_defers_twice(
    two: tuple[Organisation, Organisation], subtests: pytest.Subtests
) -> None:
    _, south = two
    waits: list[str] = []
    for changes, reason in REJECTED:
        source = {"uri": "dataset://north/flights@1", **changes}
        with subtests.test(reason):
            with pytest.raises(AirflowFailException, match=re.escape(reason)):
                run_deferred(task(sources={"flights": source}, deferrable=True), waits)
            assert not south.fetched(REF).exists()

    source = {"uri": "dataset://flights@1", "time_column": "at", "schema": {"delay": "float64"}, "licences": [LICENCE]}
    window = {"window_start": "2013-01-01", "window_end": "2013-01-08"}
    operator = task(sources={"flights": source}, **window, deferrable=True)
    snapshot = Artifact.from_dict(run_deferred(operator, waits))
    # A daemon that has just started has to read the catalogues first.
    assert [wait for wait in waits if wait != "refresh"] == ["preview", "data"]
    table = pq.read_table(RuntimeHook().store.local(snapshot) / "flights")
    assert set(table.column_names) == {"id", "at", "delay", "dest"}
    assert 0 < table.num_rows < ROWS
    waits.clear()
    assert run_deferred(operator, waits)["cached"] and not waits


def test_a_private_key_is_private_and_never_replaced(organisation: Make, as_organisation: Any, hops: Any) -> None:
    north = organisation("north")
    as_organisation(north)
    path = north.folder.path / KEY_NAME
    assert path.stat().st_mode & 0o077 == 0
    content = path.read_bytes()
    assert "already exists" in hops("datasets", "keys", "--create", "--organisation", "north")[2]
    assert path.read_bytes() == content
    for wrong, reason in (
        (["--trust", "south=abc", "--catalogue", "http://127.0.0.1"], "expected 32 bytes in Base64"),
        (["--trust", f"south={north.key}", "--catalogue", "ftp://127.0.0.1"], "expected an address http://"),
        (["--trust", f"../south={north.key}", "--catalogue", "http://127.0.0.1"], "organisation is '../south'"),
        (["--distrust", "west"], "is not trusted; trusted are none"),
    ):
        assert reason in hops("datasets", "keys", *wrong)[2]
