"""OpenLineage events: of the whole loop, whose graph is that of the lineage page, and of tasks of all kinds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flights_examples
import httpx
import pytest
from captured_flights import CaptureFolder
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from shown_demo import ShownDemo

from airflow_hops.extensions.openlineage.operators import facets as facets_of_ours
from airflow_hops.extensions.openlineage.operators.lineage import dataset_name
from airflow_hops.testing.lineage import LineageContract
from tests.extensions.tables.conftest import sqlite  # noqa: F401


class TestLineage(LineageContract):
    name = "openlineage"

    def datasets(self, described: Any) -> tuple[list[str], list[str]]:
        groups = (described.inputs, described.outputs)
        inputs, outputs = ([f"{each.namespace}://{each.name}" for each in group] for group in groups)
        return inputs, outputs


SCHEMA_FILE = Path(facets_of_ours.__file__).with_name("facets.json")
BASE = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
STEP_EVENTS = ("COMPLETE", "FAIL")
Edge = tuple[str, str, str, bool]


def schema_of_facets() -> Draft202012Validator:
    """The validator of our facets, with what OpenLineage's own schema demands of every facet."""
    facet = {"type": "object", "required": ["_producer", "_schemaURL"]}
    kinds = ("DatasetFacet", "InputDatasetFacet", "RunFacet")
    base = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": dict.fromkeys(kinds, facet)}
    schema = json.loads(SCHEMA_FILE.read_text())
    Draft202012Validator.check_schema(schema)
    registry = Registry().with_resources([(BASE, Resource.from_contents(base))])
    return Draft202012Validator(schema, registry=registry)


def facets(event: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All facets of a task's event, by name."""
    datasets = [*event["inputs"], *event["outputs"]]
    places = [event["run"]["facets"]]
    places += [each.get(place) or {} for each in datasets for place in ("facets", "inputFacets", "outputFacets")]
    for place in places:
        yield from place.items()


def check_facets(events: list[dict[str, Any]]) -> set[str]:
    """Validates our facets, and returns their names."""
    validator, names = schema_of_facets(), set()
    for event in events:
        for name, facet in facets(event):
            if name.startswith("hops_"):
                url, _, pointer = facet["_schemaURL"].partition("#")
                assert url == validator.schema["$id"] and url.endswith(
                    f"/main/{SCHEMA_FILE.relative_to(SCHEMA_FILE.parents[4])}"
                )
                assert validator.schema["properties"][name] == {"$ref": f"#{pointer}"}
                validator.validate({name: facet})
                own = validator.schema["$defs"][pointer.rpartition("/")[2]]["allOf"][1]["properties"]
                assert facet.keys() <= {"_producer", "_schemaURL", "_deleted", *own}
                names.add(name)
    return names


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The tasks' events, in the order of their times."""
    events = [json.loads(path.read_text()) for path in folder.iterdir()]
    tasks = [each for each in events if each["job"]["facets"]["jobType"]["jobType"] == "TASK"]
    return sorted(tasks, key=lambda each: str(each["eventTime"]))


def node(dataset: dict[str, Any]) -> str:
    """The identity of an artifact on the lineage page."""
    assert dataset["namespace"] == "file"
    fingerprint = dataset["facets"]["version"]["datasetVersion"]
    assert fingerprint == dataset["facets"]["hops_artifact"]["fingerprint"]
    return hashlib.sha256(f"file://{dataset['name']}\n{fingerprint}".encode()).hexdigest()[:16]


def is_artifact(dataset: dict[str, Any]) -> bool:
    return "hops_artifact" in dataset["facets"]


@pytest.fixture(scope="module")
def demo_events(shown_demo: ShownDemo) -> list[dict[str, Any]]:
    return read_events(shown_demo.openlineage)


@pytest.mark.runtime
def test_openlineage_graph_matches_lineage_page(shown_demo: ShownDemo, demo_events: list[dict[str, Any]]) -> None:
    emitted: set[Edge] = set()
    made: dict[str, tuple[str, str, str, str]] = {}
    versions: list[tuple[str, str]] = []
    for event in demo_events:
        inputs = {each["name"]: node(each) for each in event["inputs"] if is_artifact(each)}
        for output in event["outputs"]:
            task = event["run"]["facets"]["airflow"]
            run = task["dag"]["dag_id"], task["dagRun"]["run_id"], task["task"]["task_id"]
            made[node(output)] = (*run, output["facets"]["hops_artifact"]["kind"])
            if output["name"] in inputs:  # a person approved another version of it, which is made from the same
                versions.append((inputs[output["name"]], node(output)))
                continue
            roles = ((each, each["inputFacets"]["hops_role"]) for each in event["inputs"] if is_artifact(each))
            emitted |= {(node(each), node(output), role["role"], role["recorded"]) for each, role in roles}
    (approval,) = versions
    emitted |= {(source, approval[1], *of) for source, target, *of in emitted if target == approval[0]}

    url, shown = shown_demo.airflow_settings()["AIRFLOW__API__BASE_URL"], set[Edge]()
    nodes: dict[str, str] = {}
    with httpx.Client(base_url=f"{url}/hops/api", trust_env=False, timeout=60) as client:
        for dag_id, run_id, task_id, kind in made.values():
            path = f"/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/-1/{kind}/lineage"
            page = client.get(path.replace("+", "%2B")).raise_for_status().json()
            assert page["is_whole"]
            nodes |= {each["id"]: each["kind"] for each in page["nodes"]}
            shown |= {(each["source"], each["target"], each["role"], each["recorded"]) for each in page["edges"]}
    assert emitted == shown
    assert made.keys() == nodes.keys()
    assert {"snapshot", "examples", "model", "evaluation", "deployment", "rollout", "skew"} <= {*nodes.values()}


@pytest.mark.runtime
def test_decisions_are_valid_facets(demo_events: list[dict[str, Any]]) -> None:
    names = check_facets(demo_events)
    assert names == set(json.loads(SCHEMA_FILE.read_text())["properties"])

    def of(name: str) -> list[dict[str, Any]]:
        complete = (each["run"]["facets"] for each in demo_events if each["eventType"] in STEP_EVENTS)
        return [each[name] for each in complete if name in each]

    gates = [each["passed"] for each in of("hops_gate") if each["kind"] == "evaluation"]
    assert gates == [True, False, True]
    *stable, drift = of("hops_drift")
    assert {each["verdict"] for each in stable} == {"stable"} and drift["verdict"] == "drift" and drift["drifted"]
    assert [each["outcome"] for each in of("hops_retraining")] == ["refused"] * len(stable) + ["requested"]
    rollouts = [(each["decision"], each["version"]) for each in of("hops_rollout")]
    assert (rollouts[:2], rollouts[2], rollouts[-1][0]) == ([("champion", 1)] * 2, ("canary", 2), "promoted")


@pytest.mark.runtime
def test_datasets_have_columns_rows_and_versions(demo_events: list[dict[str, Any]]) -> None:
    complete = [event for event in demo_events if event["eventType"] == "COMPLETE"]
    outputs = {each["facets"]["hops_artifact"]["kind"]: each for event in complete for each in event["outputs"]}
    (flights, *_) = outputs["snapshot"]["facets"]["schema"]["fields"]
    assert (flights["name"], flights["type"]) == ("flights", "struct")
    assert {"name": "carrier", "type": "string"}.items() <= next(
        field for field in flights["fields"] if field["name"] == "carrier"
    ).items()
    types = {field["name"]: field.get("type") for field in outputs["examples"]["facets"]["schema"]["fields"]}
    assert (types["late"], types["carrier"]) == ("int64", "string")
    assert outputs["examples"]["outputFacets"]["outputStatistics"]["rowCount"] > 1000
    assert outputs["examples"]["outputFacets"]["outputStatistics"]["fileCount"] >= 3
    assert outputs["model"]["facets"]["dataSource"]["uri"].startswith("file:///")
    assert {field.get("type") for field in outputs["transformed_examples"]["facets"]["schema"]["fields"]} >= {"float32"}
    trained = next(each for each in complete if each["outputs"] == [outputs["model"]])
    (examples,) = [each for each in trained["inputs"] if each["inputFacets"]["hops_role"]["role"] == "examples"]
    assert examples["inputFacets"]["inputStatistics"]["rowCount"] > 1000
    # The run with a single epoch has its snapshot from the cache.
    ingested = [each["outputs"][0] for each in complete if each["job"]["name"] == "flights_training.ingest"]
    assert [each["facets"]["hops_artifact"]["cached"] for each in ingested] == [False, True, False]
    assert ingested[0]["name"] == ingested[1]["name"]
    sources = next(each["inputs"] for each in complete if each["job"]["name"] == "flights_training.ingest")
    assert any(each["name"].endswith("/flights.csv.zip") and each["namespace"] == "file" for each in sources)


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the events of DAGs that are run in this process."""
    from airflow.providers.openlineage import conf
    from airflow.providers.openlineage.plugins.listener import get_openlineage_listener
    from airflow.sdk.listener import get_listener_manager

    folder = tmp_path / "events"
    folder.mkdir()
    configure(folder, tmp_path / "openlineage.yml", monkeypatch)
    caches = [each for each in vars(conf).values() if hasattr(each, "cache_clear")]
    for each in caches:
        each.cache_clear()
    listener = get_openlineage_listener()  # registered already, if this is the first to ask for the manager
    get_listener_manager().add_listener(listener)
    yield folder
    get_listener_manager().pm.unregister(listener)
    for each in caches:
        each.cache_clear()


def configure(folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(json.dumps({"transport": {"type": "file", "log_file_path": f"{folder}/event"}}))  # JSON is YAML
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(file))


@pytest.mark.runtime
def test_mapped_cached_failed_and_skipped_tasks_have_events(
    events: Path, run_dag: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_NO_SERVER", '{"conn_type": "model_server", "host": "127.0.0.1", "port": 1}')
    table = tmp_path / "rows.csv"
    table.write_text("at,x\n2013-01-05T00:00:00Z,1\n2013-03-01T00:00:00Z,2\n")
    for _ in range(2):
        run_dag("openlineage", {"table": str(table)})
    collected = read_events(events)
    check_facets(collected)
    assert "secret-of-mine" not in json.dumps(collected)
    ended: dict[str, list[dict[str, Any]]] = {}
    for event in collected:
        if event["eventType"] in STEP_EVENTS:
            ended.setdefault(event["job"]["name"].partition(".")[2], []).append(event)

    first, again = ended["ingest"]
    (source,) = first["inputs"]
    assert (source["namespace"], source["name"]) == ("file", str(table))
    (snapshot,), (cached,) = first["outputs"], again["outputs"]
    assert snapshot["facets"]["hops_artifact"]["window"] == ["2013-01-01T00:00:00+00:00", "2013-02-01T00:00:00+00:00"]
    assert snapshot["outputFacets"]["outputStatistics"]["rowCount"] == 1
    assert (cached["name"], cached["facets"]["hops_artifact"]["cached"]) == (snapshot["name"], True)

    mapped = ended["count"][:2]
    assert {each["outputs"][0]["facets"]["hops_artifact"]["metrics"]["number"] for each in mapped} == {1, 2}
    assert len({each["outputs"][0]["name"] for each in mapped}) == 2
    for event in (*mapped, ended["fail"][0]):
        (tables,) = event["inputs"]
        assert (tables["name"], tables["inputFacets"]["hops_role"]["role"]) == (snapshot["name"], "tables")
    assert (ended["fail"][0]["eventType"], ended["fail"][0]["outputs"]) == ("FAIL", [])
    assert (ended["sense"][0]["eventType"], ended["sense"][0]["inputs"]) == ("COMPLETE", [])


@pytest.mark.runtime
def test_written_table_is_an_output(
    events: Path,
    run_dag: Callable[..., Any],
    tmp_path: Path,
    sqlite: Any,  # noqa: F811
    flights_raw: Path,
) -> None:
    captured = CaptureFolder(tmp_path / "captured")
    captured.add(flights_examples.months(flights_raw, 1, 1).head(9))
    run_dag("write_table", {"captured": str(captured.path / "flights")}, "tests/extensions/tables/dags")
    names = [name for _, name, *_ in sqlite.execute("PRAGMA table_info(requests)")]
    assert names[:3] == ["request_id", "row", "model"] and names[-2:] == ["hops_batch", "hops_folder"]
    assert sqlite.execute("SELECT count(*), min(model), max(hops_folder) FROM requests").fetchone() == (
        *(9, "flights", "requests"),
    )
    collected = read_events(events)
    check_facets(collected)
    (write,) = [each for each in collected if each["outputs"] and each["job"]["name"] == "write_table.write"]
    artifact, table = write["outputs"]
    assert artifact["facets"]["hops_artifact"]["kind"] == "table_write"
    assert (table["namespace"], table["name"]) == ("sql://warehouse", "/requests")
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 9
    assert [each["name"] for each in table["facets"]["schema"]["fields"]] == names


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("/data/50%/a#1.csv", "file", "/data/50%/a#1.csv"),
        ("file:///var/hops/a%20b", "file", "/var/hops/a b"),
        ("s3a://bucket/raw/*.csv.gz", "s3://bucket", "raw/*.csv.gz"),
        ("simplecache::gcs://bucket/x", "gs://bucket", "x"),
        ("hdfs://me:secret@namenode:9000/hops", "hdfs://namenode:9000", "/hops"),
        ("abfss://box@account.dfs.core.windows.net/x", "abfss://box@account.dfs.core.windows.net", "/x"),
        ("https://me:secret@host:8080/x.csv?signature=secret", "https://host:8080", "/x.csv"),
    ],
)
def test_datasets_are_named_by_their_address_without_credentials(uri: str, namespace: str, name: str) -> None:
    assert dataset_name(uri) == (namespace, name)
