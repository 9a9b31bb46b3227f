"""OpenLineage events of tasks of all kinds; those of the demo have the graph of the lineage page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from openlineage.client.serde import Serde
from referencing import Registry, Resource
from shown_demo import ShownDemo
from world import write_artifact

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.retraining.decision import RetrainingDecision
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.openlineage.operators import lineage as facets_of_ours
from airflow_hops.extensions.openlineage.operators.lineage import dataset_name, lineage_of
from airflow_hops.operators.base import HopsTask
from tests.extensions.tables.conftest import postgres, postgres_port  # noqa: F401


class Evaluate(HopsTask):
    """A task with one input."""

    input_arguments = ("model",)

    def __init__(self, *, model: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.model = model


SCHEMA_FILE = Path(facets_of_ours.__file__).with_name("facets.json")
BASE = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
STEP_EVENTS = ("COMPLETE", "FAIL")
Edge = tuple[str, str, str]


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


@pytest.mark.runtime
@pytest.mark.scheduled(part="campaigns")
def test_openlineage_graph_of_the_demo_matches_the_lineage_page(shown_demo: ShownDemo) -> None:
    emitted: set[Edge] = set()
    made: dict[str, tuple[str, str, str, str]] = {}
    versions: list[tuple[str, str]] = []
    collected = read_events(shown_demo.openlineage)
    assert check_facets(collected) == set(json.loads(SCHEMA_FILE.read_text())["properties"])
    for event in collected:
        inputs = {each["name"]: node(each) for each in event["inputs"] if is_artifact(each)}
        for output in event["outputs"]:
            task = event["run"]["facets"]["airflow"]
            run = task["dag"]["dag_id"], task["dagRun"]["run_id"], task["task"]["task_id"]
            made[node(output)] = (*run, output["facets"]["hops_artifact"]["kind"])
            if output["name"] in inputs:  # a person approved another version of it, which is made from the same
                versions.append((inputs[output["name"]], node(output)))
                continue
            roles = ((each, each["inputFacets"]["hops_role"]) for each in event["inputs"] if is_artifact(each))
            emitted |= {(node(each), node(output), role["role"]) for each, role in roles}
    (approval,) = versions
    emitted |= {(source, approval[1], *edges) for source, target, *edges in emitted if target == approval[0]}

    url, shown = shown_demo.airflow_settings()["AIRFLOW__API__BASE_URL"], set[Edge]()
    nodes: dict[str, str] = {}
    with httpx.Client(base_url=f"{url}/hops/api", trust_env=False, timeout=60) as client:
        for dag_id, run_id, task_id, kind in made.values():
            path = f"/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/-1/{kind}/lineage"
            page = client.get(path.replace("+", "%2B")).raise_for_status().json()
            assert page["is_whole"]
            nodes |= {each["id"]: each["kind"] for each in page["nodes"]}
            shown |= {(each["source"], each["target"], each["role"]) for each in page["edges"]}
    assert emitted == shown
    assert made.keys() == nodes.keys()
    assert {"snapshot", "examples", "model", "evaluation", "deployment", "rollout", "skew"} <= {*nodes.values()}


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Artifact]:
    """Writes an artifact of a kind: ``made(kind, sources, rows, **properties)``."""
    store = ArtifactStore(str(tmp_path / "store"))

    def make(kind: str, sources: Any = None, rows: int | None = None, **facts: Any) -> Artifact:
        counts = {} if rows is None else {"train": RowCounts(rows, rows)}
        by = Producer("lineage", "run", kind)
        return write_artifact(store, kind, {"content": kind}, by, inputs=sources or {}, properties=facts, rows=counts)

    make.store = store  # type: ignore[attr-defined]
    return make


def described(made: Any, output: Artifact | None, **others: Any) -> dict[str, Any]:
    """Returns the outputs and facets of a task's event, once the facets fit the schema."""
    task = Evaluate(task_id="evaluate", model=None)
    task.hook, task.made = SimpleNamespace(store=made.store), output  # type: ignore[assignment]
    vars(task).update(others)
    lineage = lineage_of(task)
    event = {name: [Serde.to_dict(each) for each in getattr(lineage, name)] for name in ("inputs", "outputs")}
    facets_of_run = {name: Serde.to_dict(facet) for name, facet in lineage.run_facets.items()}
    result = {**event, "run": {"facets": facets_of_run}}
    return result | {"names": sorted(check_facets([result]))}


def test_decisions_are_valid_facets(made: Any) -> None:
    secret = "postgres://me:secret-of-mine@db/x"
    traffic = {"1": 80, "2": 20}
    decisions: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
        ("anomalies", {"errors": [secret]}, "hops_gate", {"kind": "anomalies", "passed": False}),
        ("anomalies", {"warnings": ["few"]}, "hops_gate", {"passed": True, "reasons": ["few"]}),
        ("evaluation", {"blessed": True}, "hops_gate", {"kind": "evaluation", "passed": True, "reasons": []}),
        ("infra_blessing", {"blessed": False, "reasons": ["slow"]}, "hops_gate", {"passed": False}),
        (
            "deployment",
            {"model_name": "m", "version": 2, "mode": "canary", "champion": 1, "traffic": traffic},
            "hops_rollout",
            {"modelName": "m", "decision": "canary", "version": 2, "champion": 1, "traffic": traffic},
        ),
        (
            "rollout",
            {"model_name": "m", "version": 2, "decision": "rolled_back", "reasons": ["errors"], "champion": 1},
            "hops_rollout",
            {"decision": "rolled_back", "version": 2, "reasons": ["errors"]},
        ),
        (
            "skew",
            {"verdict": "drift", "drifted": ["x"], "causes": {"x": "units"}, "reference": {"model": "m", "version": 3}},
            "hops_drift",
            {"verdict": "drift", "drifted": ["x"], "causes": {"x": "units"}, "modelName": "m", "version": 3},
        ),
    ]  # fmt: skip
    names = set()
    for kind, properties, name, expected in decisions:
        event = described(made, made(kind, **properties))
        assert expected.items() <= event["run"]["facets"][name].items()
        assert "secret-of-mine" not in json.dumps(event)
        names.update(event["names"])
    decision = RetrainingDecision("2026-01-01T00:00:00Z", "requests", "refused", "in_flight", "one runs", "drift of x")
    event = described(made, None, decision=decision)
    expected = {"outcome": "refused", "why": "in_flight", "reason": "one runs", "cause": "drift of x"}
    assert expected.items() <= event["run"]["facets"]["hops_retraining"].items()
    assert names.union(event["names"], {"hops_role"}) == set(json.loads(SCHEMA_FILE.read_text())["properties"])


def test_datasets_have_columns_rows_versions_and_roles(made: Any) -> None:
    def fields(event: dict[str, Any]) -> dict[str, Any]:
        return {each["name"]: each.get("type") for each in event["outputs"][0]["facets"]["schema"]["fields"]}

    columns = {"late": "int64", "carrier": "string"}
    snapshot = made("snapshot", columns={"flights": columns})
    (flights,) = described(made, snapshot)["outputs"][0]["facets"]["schema"]["fields"]
    assert (flights["name"], flights["type"]) == ("flights", "struct")
    assert {each["name"]: each["type"] for each in flights["fields"]} == columns
    examples = made("examples", {"tables": snapshot}, rows=9, columns=columns, label="late")
    event = described(made, examples)
    assert fields(event) == columns
    (output,), (tables,) = event["outputs"], event["inputs"]
    counts = {"rowCount": 9, "fileCount": 1, "size": len("examples")}
    assert counts.items() <= output["outputFacets"]["outputStatistics"].items()
    assert output["facets"]["dataSource"]["uri"] == made.store.root
    assert output["facets"]["version"]["datasetVersion"] == examples.fingerprint
    assert (f"file://{tables['name']}", tables["inputFacets"]["hops_role"]["role"]) == (snapshot.uri, "tables")
    transformed = made("transformed_examples", label="late", outputs={"carrier": {"dtype": "int64"}, "x": "float32"})
    assert fields(described(made, transformed)) == {"late": None, "carrier": "int64", "x": "float32"}

    # Inputs of a repeated task are those in the manifest.
    model = made("model", {"examples": examples}, inputs=["carrier"])
    event = described(made, replace(model, cached=True), model=made("other").to_dict())
    roles = {each["name"]: each["inputFacets"]["hops_role"] for each in event["inputs"]}
    assert {f"file://{name}": role["role"] for name, role in roles.items()} == {examples.uri: "examples"}
    assert event["outputs"][0]["facets"]["hops_artifact"]["cached"] is True
    # A schema that a person has approved is an output beside the anomalies.
    approved = described(made, made("anomalies"), approved=made("schema"))["outputs"]
    assert [each["facets"]["hops_artifact"]["kind"] for each in approved] == ["anomalies", "schema"]


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
    monkeypatch.setenv("AIRFLOW_CONN_NO_SERVER", '{"conn_type": "hops", "host": "127.0.0.1", "port": 1}')
    table = tmp_path / "rows.csv"
    table.write_text("at,x\n2013-01-05T00:00:00Z,1\n2013-03-01T00:00:00Z,2\n")
    for _ in range(2):
        run_dag("openlineage", {"table": str(table)}, "tests/dags/openlineage.py")
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
    postgres: Any,  # noqa: F811
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("request_id,row\n" + "".join(f"r{number},{number}\n" for number in range(9)))
    postgres.execute("CREATE TABLE requests (request_id text, row int8, hops_batch text, hops_folder text)")
    run_dag("write_table", {"captured": str(rows)}, "tests/extensions/tables/dags")
    answer = postgres.execute("SELECT count(*), min(request_id), max(hops_folder) FROM requests")
    assert answer.fetchone() == (9, "r0", "requests")
    names = [column.name for column in postgres.execute("SELECT * FROM requests LIMIT 0").description]
    assert names == ["request_id", "row", "hops_batch", "hops_folder"]
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
