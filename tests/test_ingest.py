"""Ingest: raw tables in a window of time into a snapshot."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import threading
import time
import uuid
import zipfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import World, context_of

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput, StepFailed
from airflow_hops.core.profiles import BASE, profile_of
from airflow_hops.core.retraining.decisions import claim_request, found_no_new_rows
from airflow_hops.core.retraining.triggered import extras, requested_window
from airflow_hops.core.sources.source_files import fingerprint_of_sources, list_files
from airflow_hops.core.sources.sources import Source
from airflow_hops.core.store import ArtifactStore
from airflow_hops.operators.base import producer_of
from airflow_hops.runner.connections import with_storage_options
from airflow_hops.runner.new_rows import claim_requests, note_new_rows

pytestmark = pytest.mark.runtime

RUN = "airflow_hops.ml.ingest:run"
CSV = "id,at,amount,note\n1,2013-01-01T00:00:00Z,2.5,NA\n2,2013-01-02T00:00:00Z,,café\n3,2013-01-03T00:00:00Z,4,x\n"
ROWS = [
    {"id": 1, "at": "2013-01-01T00:00:00Z", "amount": 2.5, "note": None},
    {"id": 2, "at": "2013-01-02T00:00:00Z", "amount": None, "note": "café"},
    {"id": 3, "at": "2013-01-03T00:00:00Z", "amount": 4.0, "note": "x"},
]


@pytest.fixture
def ingest(run_step: Any, warm_launcher: Any) -> Callable[..., Any]:
    """Ingests tables given as keyword arguments."""

    def run(
        window: tuple[str | None, str | None] = (None, None), **sources: Source | str | Path | dict[str, Any]
    ) -> Any:
        values = {
            name: Source.from_value(name, str(value) if isinstance(value, Path) else value).to_dict()
            for name, value in sources.items()
        }
        params = {"sources": values, "window_start": window[0], "window_end": window[1]}
        return run_step(RUN, params=params, kind="snapshot", launcher=warm_launcher)

    run.steps = run_step  # type: ignore[attr-defined]
    return run


def table_of(ingest: Any, artifact: Any, name: str) -> pa.Table:
    return pq.read_table(ingest.steps.store.local(artifact) / name)


def refused(ingest: Any, **arguments: Any) -> str:
    """The message with which a step fails; asserts that it left nothing."""
    with pytest.raises(StepFailed) as failure:
        ingest(**arguments)
    assert failure.value.retryable == ("changed while it was read" in str(failure.value))
    assert not ingest.steps.store.exists(ingest.steps.last_uri)
    folder = Path(ingest.steps.last_uri.removeprefix("file://")).parent
    assert list(folder.glob("snapshot*")) == []
    return str(failure.value)


def test_ingested_flights_match_the_zip(ingest: Any, flights_raw: Path) -> None:
    artifact = ingest(
        ("2013-01-01", "2013-02-01T00:00:00+00:00"),
        flights=Source(str(flights_raw / "flights.csv.zip"), time_column="time_hour"),
        planes=flights_raw / "planes.csv",
    )
    with zipfile.ZipFile(flights_raw / "flights.csv.zip") as archive, archive.open("flights.csv") as stream:
        options = pa.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
        raw = pa.csv.read_csv(stream, convert_options=options)
    start, end = (
        pa.scalar(text, pa.string()).cast(raw["time_hour"].type) for text in ("2013-01-01T00Z", "2013-02-01T00Z")
    )
    expected = raw.filter(
        pa.compute.and_(pa.compute.greater_equal(raw["time_hour"], start), pa.compute.less(raw["time_hour"], end))
    )
    result = table_of(ingest, artifact, "flights")
    assert result.cast(expected.schema).equals(expected)
    assert result.schema.field("time_hour").type == pa.timestamp("us", "UTC")
    assert result.schema.field("dep_time").type == pa.int64()
    rows = artifact.rows["flights"]
    assert (rows.rows_in, rows.rows_out) == (336_776, expected.num_rows)
    assert rows.rejected == {"outside window": 336_776 - expected.num_rows}
    assert artifact.rows["planes"].rows_in == artifact.rows["planes"].rows_out == 3322
    columns = artifact.properties["columns"]
    assert (columns["flights"]["time_hour"], columns["flights"]["dep_time"]) == ("timestamp[us, tz=UTC]", "int64")
    assert list(columns["planes"]) == table_of(ingest, artifact, "planes").column_names
    assert artifact.properties == {
        "window": ["2013-01-01T00:00:00+00:00", "2013-02-01T00:00:00+00:00"],
        "tables": ["flights", "planes"],
        "columns": columns,
    }


def test_all_formats_and_compressions_give_the_same_table(ingest: Any, tmp_path: Path) -> None:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    (tmp_path / "plain.csv").write_text(CSV)
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    # Two gzip members, one after the other, are one file.
    (tmp_path / "joined.csv.gz").write_bytes(gzip.compress(CSV[:40].encode()) + gzip.compress(CSV[40:].encode()))
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("inner.csv", CSV)
    (tmp_path / "nameless").write_text(CSV)
    (tmp_path / "lines.jsonl").write_text(lines)
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "nameless_lines").write_text(lines)
    (tmp_path / "latin.csv").write_bytes(CSV.replace(",", ";").encode("latin-1"))
    typed = pa.Table.from_pylist([{**row, "at": None} for row in ROWS])
    times = (
        pa.array([row["at"].removesuffix("Z") for row in ROWS]).cast(pa.timestamp("ns")).cast(pa.timestamp("ns", "UTC"))
    )
    typed = typed.set_column(1, "at", times)
    pq.write_table(typed, tmp_path / "file.parquet")
    shutil.copy(tmp_path / "file.parquet", tmp_path / "nameless_columns")
    names = ["plain.csv", "packed.csv.gz", "joined.csv.gz", "packed.zip", "nameless", "lines.jsonl", "packed.jsonl.gz",
             "nameless_lines", "file.parquet", "nameless_columns"]  # fmt: skip
    sources = {name.replace(".", "_"): Source(str(tmp_path / name), time_column="at") for name in names}
    latin = Source(str(tmp_path / "latin.csv"), time_column="at", delimiter=";", encoding="latin-1")
    artifact = ingest(**sources, latin=latin)
    expected = typed.set_column(1, "at", typed["at"].cast(pa.timestamp("us", "UTC")))
    for name in [*sources, "latin"]:
        result = table_of(ingest, artifact, name)
        assert result.schema.remove_metadata().equals(expected.schema), name
        assert result.to_pylist() == expected.to_pylist(), name


def test_folder_and_glob_give_one_table_of_unified_types(ingest: Any, tmp_path: Path) -> None:
    (tmp_path / "days" / "later").mkdir(parents=True)
    (tmp_path / "days" / "1.csv").write_text("id,amount\n1,2\n")
    (tmp_path / "days" / "later" / "2.csv").write_text("amount,id\n3.5,2\n")
    (tmp_path / "days" / "_SUCCESS").write_text("")
    artifact = ingest(folder=tmp_path / "days", glob=tmp_path / "days" / "*.csv")
    assert table_of(ingest, artifact, "folder").to_pylist() == [{"id": 1, "amount": 2.0}, {"id": 2, "amount": 3.5}]
    assert table_of(ingest, artifact, "glob").to_pylist() == [{"id": 1, "amount": 2}]


def test_rerun_gives_equal_bytes_for_a_moved_file(ingest: Any, flights_raw: Path, tmp_path: Path) -> None:
    shutil.copy(flights_raw / "weather.csv", tmp_path / "copy.csv")
    first = ingest(weather=Source(str(flights_raw / "weather.csv"), time_column="time_hour"))
    second = ingest(weather=Source(str(tmp_path / "copy.csv"), time_column="time_hour"))
    assert first.uri != second.uri
    assert first.fingerprint == second.fingerprint


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(run_step: Any, tmp_path: Path) -> None:
    (tmp_path / "measured.py").write_text(
        "import logging, resource\n"
        "from airflow_hops.ml.ingest import run\n"
        "def measured(context, **params):\n"
        "    artifact = run(context, **params)\n"
        "    logging.info('peak_kib %s', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
        "    return artifact\n"
    )
    peaks = []
    block = "".join(f"{n},{n * 7919 % 100_003},text of row {n * 31 % 977}\n" for n in range(200_000))
    for blocks in (2, 12):
        path = tmp_path / f"rows-{blocks}.csv.gz"
        with gzip.open(path, "wt", compresslevel=1) as stream:
            stream.write("id,number,text\n")
            for _ in range(blocks):
                stream.write(block)
        sources = {"rows": Source(str(path)).to_dict()}
        artifact = run_step(
            "measured:measured", params={"sources": sources}, kind="snapshot", code_paths=(str(tmp_path),)
        )
        assert artifact.rows["rows"].rows_out == 200_000 * blocks
        peaks += [int(line.text.split()[1]) for line in run_step.lines if line.text.startswith("peak_kib")]
    small, large = peaks
    # Five sixths of the larger file, 54 MiB of text, may not show.
    assert large - small < 30 << 10, peaks


def test_parquet_of_a_newer_writer_is_read(ingest: Any, runtime: Path, tmp_path: Path) -> None:
    numbers = pa.array([1, 2])
    columns = {
        "id": pa.array([bytes(15) + b"\1", None], pa.uuid()),
        "json": pa.array(['{"a": 1}', None], pa.json_()),
        "view": pa.array(["é", None], pa.string_view()),
        "list": pa.array([[1], None], pa.list_view(pa.int64())),
        "price": pa.array([Decimal("1.50"), None], pa.decimal32(5, 2)),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    assert table_of(ingest, ingest(t=tmp_path / "t.parquet"), "t").to_pydict() == {
        "id": ["00000000-0000-0000-0000-000000000001", None],
        "json": ['{"a": 1}', None],
        "view": ["é", None],
        "list": [[1], None],
        "price": [Decimal("1.50"), None],
    }
    for options in ({"use_byte_stream_split": ["x"]}, {"column_encoding": {"x": "DELTA_LENGTH_BYTE_ARRAY"}}):
        column = numbers if "use_byte_stream_split" in options else numbers.cast(pa.string())
        pq.write_table(pa.table({"x": column}), tmp_path / "t.parquet", use_dictionary=False, **options)
        if profile_of(runtime) is not BASE:
            assert table_of(ingest, ingest(t=tmp_path / "t.parquet"), "t")["x"].to_pylist() == column.to_pylist()
            continue
        message = refused(ingest, t=tmp_path / "t.parquet")
        assert f"{tmp_path}/t.parquet: cannot be read" in message
        assert "does not know this feature of the format; write the file anew without it" in message


def test_bad_files_are_named(ingest: Any, tmp_path: Path) -> None:
    def write(name: str, **columns: Any) -> None:
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")

    pq.write_table(pa.table({"a": list(range(50_000))}), tmp_path / "damaged.parquet", compression="gzip")
    content = bytearray((tmp_path / "damaged.parquet").read_bytes())
    content[2000:2200] = b"\xff" * 200
    (tmp_path / "damaged.parquet").write_bytes(content)
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    write("1", a=[1])
    write("2", a=["x"])
    (tmp_path / "1.csv").write_text("id,a\n1,2\n")
    (tmp_path / "2.csv").write_text("id,b\n1,2\n")
    for files, words in (
        ("damaged.parquet", f"{tmp_path}/damaged.parquet: cannot be read"),
        ("twice.parquet", f"{tmp_path}/twice.parquet: two columns have the name 'id'"),
        ("[12].parquet", f"{tmp_path}/2.parquet: column 'a' is string, in {tmp_path}/1.parquet it is int64"),
        ("?.csv", f"{tmp_path}/2.csv: there is no column 'a', which {tmp_path}/1.csv has"),
    ):
        assert words in refused(ingest, t=tmp_path / files)
    (tmp_path / "index.csv").write_text(",mean radius\n0,1.5\n")
    ingest(t={"uri": str(tmp_path / "index.csv"), "columns": ["mean radius"]})  # the column without a name is left out


def test_empty_window_names_the_existing_times(ingest: Any, flights_raw: Path) -> None:
    source = Source(str(flights_raw / "weather.csv"), time_column="time_hour")
    message = refused(ingest, window=("2020-01-01", "2020-02-01"), weather=source)
    assert "no rows in the window [2020-01-01T00:00:00+00:00, 2020-02-01T00:00:00+00:00)" in message
    assert "'time_hour' of the 26115 rows" in message
    assert "goes from 2013-01-01T06:00:00+00:00 to 2013-12-30T23:00:00+00:00" in message


@pytest.mark.parametrize("written", ["1\n", "1,2,3\n"], ids=["whole rows", "rows that would be damaged"])
def test_a_source_that_changes_while_it_is_read_is_an_error(ingest: Any, tmp_path: Path, written: str) -> None:
    path = tmp_path / "growing.csv"
    path.write_text("id\n" + "".join(f"{n}\n" for n in range(300_000)))
    done = threading.Event()

    def grow() -> None:
        while not done.is_set():
            with path.open("a") as stream:
                stream.write(written)
            time.sleep(0.002)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        message = refused(ingest, t=path)
    finally:
        done.set()
        writer.join()
    assert f"{path}: the file changed while it was read" in message


def test_a_source_takes_its_credentials_from_a_connection(ingest: Any, s3_endpoint: str, world: World) -> None:
    import s3fs

    options = {"key": "reader", "secret": "s3cr3t-of-t", "endpoint_url": s3_endpoint}
    bucket = s3fs.S3FileSystem(**options)
    bucket.mkdir("raw-files")
    bucket.pipe_file("raw-files/t.csv", CSV.encode())
    world.connect("raw", "aws", login="reader", password="s3cr3t-of-t", endpoint_url=s3_endpoint)
    source = Source("s3://raw-files/t.csv", storage_conn_id="raw")
    assert table_of(ingest, ingest(t=source), "t")["id"].to_pylist() == [1, 2, 3]
    assert with_storage_options({"t": source})["t"] == Source("s3://raw-files/t.csv", storage_options=options)
    with pytest.raises(BadInput, match="storage_conn_id: there is no connection 'nowhere'"):
        ingest(t=Source("s3://raw-files/t.csv", storage_conn_id="nowhere"))


def test_no_file_is_an_error_before_a_step_starts(tmp_path: Path) -> None:
    for uri, expected in {
        f"{tmp_path}/*.csv": "no file matches",
        "raw/flights.csv": "is a relative path",
        "nosuch://bucket/flights": "nosuch",
    }.items():
        with pytest.raises(BadInput, match=expected):
            list_files(Source(uri))


LISTINGS = {
    **dict.fromkeys(["d", "d/*", "d/part-0.parquet", "d/**/*.parquet", "d/c=1", "*/*.parquet"], "a Delta table"),
    **dict.fromkeys(["i", "i/data", "i/data/c=1/a.parquet", "i/data/*/*"], "an Iceberg table"),
    **dict.fromkeys(["h", "h/c=1"], "a Hudi table"),
    "m": "a Delta table",
    "w[1]": "a Delta table",
    **dict.fromkeys(["out", "out/", "out/*", "out/**", "out/part-*"], ("part-0.parquet",)),
    "out/_*": ("_SUCCESS",),
    "out/.*": (".part-0.parquet.crc",),
    ".hidden/*": ("a.csv",),
    "plain/data": ("x.parquet",),
}
"""The files that a path or pattern names, or the table that they belong to."""


def test_listing_leaves_out_markers_and_refuses_tables(tmp_path: Path) -> None:
    for name in (
        *("d/_delta_log/0.json", "d/part-0.parquet", "d/c=1/part-1.parquet", "m/_delta_log/0.json", "m/aB/x.parquet"),
        *("i/metadata/1.metadata.json", "i/data/c=1/a.parquet", "h/.hoodie/hoodie.properties", "h/c=1/a.parquet"),
        *("out/_SUCCESS", "out/part-0.parquet", "out/.part-0.parquet.crc", ".hidden/a.csv", "plain/data/x.parquet"),
        *("w[1]/_delta_log/0.json", "w[1]/x.parquet"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    for pattern, expected in LISTINGS.items():
        source = Source(f"{tmp_path}/{pattern}")
        if isinstance(expected, str):
            with pytest.raises(BadInput, match=expected):
                list_files(source)
        else:
            assert [Path(file.path).name for file in list_files(source)[1]] == [*expected], pattern


def test_the_fingerprint_of_sources_changes_with_their_files(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("id\n1\n")
    sources = {"t": Source(f"{tmp_path}/*.csv")}
    first = fingerprint_of_sources(sources)
    assert fingerprint_of_sources(sources) == first
    (tmp_path / "2.csv").write_text("id\n1\n")
    second = fingerprint_of_sources(sources)
    (tmp_path / "1.csv").write_text("id\n10\n")
    assert len({first, second, fingerprint_of_sources(sources)}) == 3


def test_a_source_knows_its_fields() -> None:
    source = Source("/data/t.csv", columns=("a",), schema={"a": "int64"})
    assert Source.from_value("t", source.to_dict()) == source
    for value, expected in {"folder": "has no field 'folder'", "": "lacks 'uri'"}.items():
        with pytest.raises(BadInput, match=expected):
            Source.from_value("t", {value: 1} if value else {})
    with pytest.raises(BadInput, match=r"format is 'xml', expected one of csv"):
        Source("/data/t.xml", format="xml")


def triggered_by(*extras: dict[str, Any], run_id: str = "first") -> Any:
    """The context of a run that asset events with these extras have triggered."""
    from airflow.sdk.execution_time.comms import AssetEventDagRunReferenceResult
    from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor

    facts: dict[str, Any] = {"asset": {"name": "drifted", "uri": "drifted", "extra": {}}, "source_aliases": []}
    facts |= dict.fromkeys(("source_task_id", "source_dag_id", "source_run_id", "source_map_index"))
    facts["timestamp"] = "2013-08-01T00:00:00Z"
    events = [AssetEventDagRunReferenceResult.model_validate({**facts, "extra": extra}) for extra in extras]
    context = context_of("ingest", "training", run_id)
    return {"triggering_asset_events": TriggeringAssetEventsAccessor.build(events), "ti": context["ti"]}


@pytest.mark.parametrize(
    ("extras", "start", "end"),
    [
        ([], "2013-01-01", "2013-04-01"),
        ([{}, {"window_end": "2013-07-01T00:00:00Z"}], "2013-01-01", "2013-07-01T00:00:00Z"),
        ([{"window_end": "2013-07-01T12:00:00+00:00"}, {"window_end": "2013-07-01T10:00:00-05:00"}],
         "2013-01-01", "2013-07-01T10:00:00-05:00"),
        ([{"window_start": "2013-03-01", "window_end": "2013-07-01"}, {"window_end": "2013-06-01"}],
         "2013-03-01", "2013-07-01"),
        # Data without a time of its own has no end.
        ([{"window_start": "2013-02-01", "window_end": None}], "2013-02-01", "2013-04-01"),
        ([{"window_start": "2013-02-15", "window_end": None}, {"window_start": "2013-02-01", "window_end": None},
          {"window_end": "2013-07-01"}], "2013-02-15", "2013-04-01"),
    ],
)  # fmt: skip
def test_asset_event_sets_the_window(extras: list[dict[str, Any]], start: str, end: str) -> None:
    from jinja2 import Environment

    from airflow_hops.operators import IngestOperator
    from airflow_hops.plugin import HopsPlugin

    operator = IngestOperator(
        task_id="ingest", sources={"t": "/t.csv"}, window_start="2013-01-01", window_end="2013-04-01"
    )
    context = triggered_by(*extras)
    params = operator.step_params(context)
    assert (params["window_start"], params["window_end"]) == (start, end)
    macros = {function.__name__: function for function in HopsPlugin.macros}
    template = Environment().from_string(
        "{{ window_start(events, '2013-01-01') }} {{ window_end(events, '2013-04-01') }}"
    )
    assert template.render(events=context["triggering_asset_events"], **macros) == f"{start} {end}"


def test_window_is_the_partition_key_of_the_event() -> None:
    from airflow.sdk import DAG
    from airflow.sdk.exceptions import AirflowFailException

    from airflow_hops.operators import IngestOperator

    with DAG("partitions", schedule=None):
        operator = IngestOperator(task_id="ingest", sources={"t": "/t.csv"}, partition_by_window=True)
    keys: list[str] = []
    event = SimpleNamespace(extra={}, add_partitions=keys.append)
    context: Any = {"outlet_events": dict.fromkeys(operator.outlets, event)}
    window = ["2013-01-01T00:00:00+00:00", "2013-02-01T12:30:00+00:00"]
    operator._announce(context, Artifact("file:///s", "snapshot", "f", properties={"window": window}))
    assert (keys, event.extra["window"]) == (["2013-01-01T00:00:00|2013-02-01T12:30:00"], window)
    with pytest.raises(AirflowFailException, match="has no window; expected data of an IngestOperator with"):
        operator._announce(context, Artifact("file:///s", "snapshot", "f"))


def test_retraining_without_new_rows_ends_and_is_noted(world: World) -> None:
    store = world.store

    def made(kind: str, content: str = "", **inputs: Artifact) -> Artifact:
        return world.artifact(kind, content, Producer("training", f"run-{uuid.uuid4().hex}", kind), inputs=inputs)

    def request(cause: str, snapshot: Artifact, model_name: str | None = "m") -> str:
        by = producer_of(triggered_by())
        claim_request(store, cause, by)
        return note_new_rows(store, [{"cause": cause, "model_name": model_name}], by, snapshot)

    old, same, new = made("snapshot", "rows"), made("snapshot", "rows"), made("snapshot", "more rows")
    examples = made("examples", tables=old)
    schema = made("schema", statistics=made("statistics", examples=made("examples", tables=new)))
    model = made("model", examples=examples, statistics=made("statistics", examples=examples), schema=schema)
    assert not request("before the first deployment", same)
    world.deployed("m", model, version=3)
    assert "on which version 3 of model 'm' was not trained" in request("unchanged", same)
    assert not request("changed", new)
    assert not request("of two spans", same, None)
    noted = {cause: found_no_new_rows(store, cause) for cause in ("unchanged", "changed", "of two spans", "unclaimed")}
    assert noted == {"unchanged": True, "changed": False, "of two spans": False, "unclaimed": False}
    request("unchanged", new)  # its task was cleared
    assert not found_no_new_rows(store, "unchanged")
    world.deployed("m", made("model", examples=made("examples", tables=old, labels=new)), version=4)
    assert not request("of two snapshots", same)


@given(
    st.sampled_from(["cause", "model_name", "window_start", "window_end"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300), st.lists, max_leaves=2
    ),
)
@settings(max_examples=60)
def test_an_event_of_anybody_claims_or_is_refused(name: str, value: Any) -> None:
    context = triggered_by({name: value})
    store = ArtifactStore(f"memory://{uuid.uuid4().hex}")
    try:
        claim_requests(store, list(extras(context["triggering_asset_events"])), producer_of(context))
        requested_window(context["triggering_asset_events"])
    except BadInput as error:
        assert re.search(r"asset event's|bytes as the name of a folder", str(error))  # noqa: PT017
    else:
        assert value is None or isinstance(value, str)


def test_a_request_is_claimed_by_one_run(tmp_path: Path) -> None:
    store, cause = ArtifactStore(str(tmp_path)), {"cause": "c0ffee"}
    first, second = (producer_of(triggered_by(run_id=run_id)) for run_id in ("first", "second"))
    for _ in range(2):  # and by its retry
        assert not claim_requests(store, [cause], first)
    assert claim_requests(store, [cause, cause], second).endswith("was claimed by run first")
    for requests in ([cause, {"cause": "decaf"}], [cause, {}], [{}], []):
        assert not claim_requests(store, requests, second)
