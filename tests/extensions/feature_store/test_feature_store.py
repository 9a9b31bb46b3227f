"""Feature store: definitions, point-in-time joins, materialization and pushes, on a real Feast."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from served_models import ConnectedServer, Gateway, Upstream
from step_runner import warm_launcher_in
from waiting import wait_for

from airflow_hops.core.errors import StepFailed
from airflow_hops.extensions.feature_store.core.stored_features import StoredFeature, StoredFeatures
from airflow_hops.extensions.feature_store.serving.feature_server import FeatureServer, FeatureServerError
from airflow_hops.runner.environments.java import find_java
from airflow_hops.runner.environments.named import make_named
from airflow_hops.runner.environments.runtime import pins_file

pytestmark = pytest.mark.runtime

STAGES = "airflow_hops.extensions.feature_store.ml.stages"
REPOSITORY = Path(__file__).parent / "feature_repository"
START = pd.Timestamp("2024-01-01", tz="UTC")
HOUR = pd.Timedelta(hours=1)
FEATURES = ("carrier_delays:mean_delay", "carrier_delays:flights", "airport_weather:sky")


@pytest.fixture(scope="session")
def feast_runtime(runtime: Path) -> Path:
    """The named environment with Feast beside the runtime environment."""
    from airflow_hops.cli.runtime import find_uv

    make_named(
        runtime, "test-features", ["feast[duckdb,grpcio]==0.67.*"], pins_file(), uv=find_uv(), say=lambda line: None
    )
    return runtime.with_name(f"{runtime.name}-test-features")


@pytest.fixture(scope="session")
def feast_launcher(feast_runtime: Path) -> Any:
    """Launches steps from a warm process that has imported Feast, which takes ten seconds."""
    return warm_launcher_in(Path(os.environ["AIRFLOW_HOME"], "warm-feast"), feast_runtime)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A feature repository of the test's own, with random values and late arrivals; its parameter is the engine."""
    data = tmp_path / "features"
    data.mkdir()
    monkeypatch.setenv("HOPS_TEST_FEATURES", str(data))
    random = np.random.default_rng(7)
    count = 400
    times = START + pd.to_timedelta(random.integers(0, 200, count), unit="h")
    late_h = np.where(random.random(count) < 0.25, random.integers(1, 10, count), 0)
    delays = pd.DataFrame({
        "carrier_id": random.integers(0, 12, count),
        "mean_delay": random.normal(size=count).astype("float32"),
        "flights": random.integers(0, 100, count),
        "at": times,
        "created": times + pd.to_timedelta(late_h, unit="h"),
    }).drop_duplicates(["carrier_id", "at"])  # fmt: skip
    delays.to_parquet(data / "delays.parquet", index=False)
    weather = pd.DataFrame({
        "airport_id": random.choice(["EWR", "JFK"], 60),
        "wind": random.random(60).astype("float32"),
        "sky": random.choice(["clear", "rain"], 60),
        "at": START + pd.to_timedelta(random.integers(0, 200, 60), unit="h"),
    }).drop_duplicates(["airport_id", "at"])  # fmt: skip
    weather.to_parquet(data / "weather.parquet")
    folder = tmp_path / "repository"
    shutil.copytree(REPOSITORY, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "feature_store.yaml").open("a") as file:
        file.write(f"offline_store:\n  type: {getattr(request, 'param', 'duckdb')}\n")
    return folder


@pytest.fixture
def step(run_step: Any, feast_launcher: Any, repository: Path) -> Callable[..., Any]:
    """Runs a stage of the feature store."""

    def run(
        stage: str,
        kind: str,
        inputs: dict[str, Any] | None = None,
        services: dict[str, str] | None = None,
        dag_id: str = "tests",
        **params: Any,
    ) -> Any:
        return run_step(
            f"{STAGES}.{stage}:run",
            dag_id=dag_id,
            services=services,
            kind=kind,
            inputs=inputs,
            params={"repository": str(repository), **params},
            launcher=feast_launcher,
        )

    run.steps = run_step  # type: ignore[attr-defined]
    run.repository = repository  # type: ignore[attr-defined]
    return run


PATIENT = {"max_age_s": 1e9, "timeout_s": 60.0}
"""Options of look-ups of old values, on a machine that may be busy."""
BY_CARRIER = {"carrier_id": "carrier_id"}, {"carrier_id": "INT64"}
CARRIER_FLIGHTS = StoredFeature("carrier_delays", "flights", "Int64", *BY_CARRIER)


@dataclass
class Feast:
    """Feast's feature server for the repository of a test."""

    process: subprocess.Popen[bytes]
    address: str

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def feast(step: Any, feast_runtime: Path, request: pytest.FixtureRequest) -> Callable[[], Feast]:
    """Starts Feast's feature server, after the definitions are applied."""

    def start() -> Feast:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            address = f"127.0.0.1:{holder.getsockname()[1]}"
        command = [feast_runtime / "bin" / "feast", "listen", "-a", address]
        # Feast 0.67 returns SQLite's times in the zone of the process.
        environment = {**os.environ, "TZ": "UTC"}
        server = Feast(subprocess.Popen(command, cwd=step.repository, env=environment), address)
        request.addfinalizer(server.stop)

        with contextlib.closing(FeatureServer(address, 60)) as client:

            def answers() -> bool:
                """Returns whether a look-up succeeds: the first one loads the registry and opens the store."""
                with contextlib.suppress(FeatureServerError):
                    client.read([CARRIER_FLIGHTS], {"carrier_id": np.array([0])}, 1)
                    return True
                return False

            wait_for(answers, "Feast's feature server")
        return server

    return start


def examples(step: Any, rows: pd.DataFrame) -> Any:
    """Publishes rows as examples: two thirds in the split train, the others in eval."""
    from airflow_hops.core.artifacts.artifact import Producer

    cut = 2 * len(rows) // 3
    splits = {"train": rows[:cut], "eval": rows[cut:]}
    store = step.steps.store
    producer = Producer("tests", "run", "prepare")
    with store.create(store.address(producer, "examples"), "examples", producer, inputs={}) as writer:
        for split, part in splits.items():
            (writer.path / split).mkdir()
            table = pa.Table.from_pandas(part, preserve_index=False)
            pq.write_table(table, writer.path / split / "part-0.parquet")
        return writer.commit(
            properties={"label": "late", "key": "id", "time": "at", "splits": ["train", "eval"], "problem": "binary"}
        )


def flights(count: int = 300) -> pd.DataFrame:
    random = np.random.default_rng(3)
    rows = pd.DataFrame({
        "id": [f"f{number}" for number in range(count)],
        "late": random.integers(0, 2, count),
        "at": (START.timestamp() + 3600 * random.integers(-5, 220, count)).astype("int64"),
        "carrier_id": random.integers(0, 14, count),  # two of them have no values
        "airport_id": random.choice(["EWR", "JFK", "LGA"], count),
        "distance": random.random(count),
    })  # fmt: skip
    rows.loc[1] = {**rows.loc[0], "id": "f1", "late": 1 - rows.loc[0, "late"]}  # the same keys and time
    return rows


def as_of(
    history: pd.DataFrame, key: str, value: Any, moment: pd.Timestamp, ttl: pd.Timedelta, *, created: bool
) -> dict[str, Any]:
    """The definition of a point-in-time join, row by row."""
    known = history[(history[key] == value) & (history["at"] <= moment) & (history["at"] >= moment - ttl)]
    if created:
        known = known[known["created"] <= moment]
    return {} if known.empty else known.sort_values(["at", "created"][: 1 + ("created" in known)]).iloc[-1].to_dict()


def table_of(step: Any, artifact: Any) -> pd.DataFrame:
    folder = step.steps.store.local(artifact)
    return pd.concat([pq.read_table(folder / split).to_pandas() for split in ("train", "eval")], ignore_index=True)


@pytest.mark.slow
def test_training_set_has_point_in_time_values(step: Any) -> None:
    rows = flights()
    data = step.repository.parent / "features"
    delays, weather = pd.read_parquet(data / "delays.parquet"), pd.read_parquet(data / "weather.parquet")
    corrected = delays[::2].assign(created=delays["created"] + HOUR, flights=delays["flights"] + 100)
    delays = pd.concat([corrected, delays], ignore_index=True)
    delays.to_parquet(data / "delays.parquet", index=False)
    defined = step("apply_features", "feature_definitions")
    labelled = {"examples": examples(step, rows)}
    joined = step("training_dataset", "examples", {**labelled, "definitions": defined}, features=[*FEATURES])
    result = table_of(step, joined)
    assert list(result["id"]) == list(rows["id"])
    assert list(result.columns) == ["id", "late", "at", "distance", "mean_delay", "flights", "sky"]
    leaking = 0
    for row, got in zip(rows.itertuples(), result.itertuples(), strict=True):
        moment = pd.Timestamp(row.at, unit="s", tz="UTC")
        expected = as_of(delays, "carrier_id", row.carrier_id, moment, 6 * HOUR, created=True)
        assert np.allclose(got.mean_delay, expected.get("mean_delay", np.nan), equal_nan=True), row
        assert np.allclose(got.flights, expected.get("flights", np.nan), equal_nan=True), row
        sky = as_of(weather, "airport_id", row.airport_id, moment, 720 * HOUR, created=False).get("sky")
        assert (None if pd.isna(got.sky) else got.sky) == sky, row
        late = as_of(delays, "carrier_id", row.carrier_id, moment, 6 * HOUR, created=False)
        leaking += late.get("flights") != expected.get("flights")
    assert leaking > 10  # without the created timestamp these rows would have had values from the future
    assert joined.rows["train"].rows_out == 200
    origin = StoredFeatures.from_dict(joined.properties["stored_features"])
    assert origin.without_created == ("airport_weather",)
    assert origin.columns["flights"].view == "carrier_delays"
    assert origin.columns["flights"].ttl_s == 6 * 3600
    assert origin.columns["flights"].key_types == {"carrier_id": "INT64"}
    assert origin.fingerprint == defined.properties["fingerprint"]
    # A service, as nobody could have known the values
    options = {"features": "scoring", "full_names": True, "as_created": False, "drop_keys": False}
    leaking = step("training_dataset", "examples", labelled, **options)
    names = ["carrier_delays__mean_delay", "airport_weather__wind", "airport_weather__sky"]
    assert list(table_of(step, leaking).columns)[-3:] == names
    file = step.repository / "feature_store.yaml"
    file.write_text(file.read_text().replace("type: duckdb", "type: dask"))
    with pytest.raises(StepFailed, match=r"'carrier_delays'.*offline_store.type is 'dask'.* set it to 'duckdb'"):
        step("training_dataset", "examples", labelled, **options)


@pytest.mark.slow
def test_keys_are_exact(step: Any) -> None:
    first = 2**53  # the next integer is the same float
    history = pd.DataFrame({"carrier_id": [first, first + 1], "mean_delay": np.float32([1, 2]), "flights": [1, 2]})
    file = step.repository.parent / "features" / "delays.parquet"
    history.assign(at=START, created=START).to_parquet(file, index=False)
    step("apply_features", "feature_definitions")
    keys = np.array([first + 1, first + 1, first, 5])
    event_s = int(START.timestamp()) + 60
    rows = pd.DataFrame(
        {"id": [*"abcd"], "late": [0, 1, 0, 1], "at": event_s, "carrier_id": keys, "airport_id": "JFK\0"}
    )

    def joined(rows: pd.DataFrame, feature: str) -> pd.DataFrame:
        labelled = {"examples": examples(step, rows)}
        return table_of(step, step("training_dataset", "examples", labelled, features=[feature]))

    seen = joined(rows, "carrier_delays:flights")["flights"]
    assert seen.fillna(-1).tolist() == [2, 2, 1, -1]
    for changed, feature, message in (
        (rows.assign(carrier_id="7"), "carrier_delays:flights", r"'carrier_id' is object .* '7'; expected INT64"),
        (rows.assign(airport_id=7), "airport_weather:sky", r"'airport_id' is int64 .*; expected STRING"),
        (rows, "airport_weather:sky", "key 'airport_id' has a NUL character"),
        (rows.assign(carrier_id=2.0**53), "carrier_delays:flights", r"has floats of 2\^53 or more"),
    ):
        with pytest.raises(StepFailed, match=message):
            joined(changed, feature)


ODD = """
from feast.on_demand_feature_view import on_demand_feature_view
from feast.types import Array, Float64

odd = FeatureView(
    name="odd",
    entities=[carrier],
    schema=[Field(name="codes", dtype=Array(Int64)), Field(name="large", dtype=Int64)],
    source=FileSource(name="odd_file", path=str(DATA / "odd.parquet"), timestamp_field="at"),
)


@on_demand_feature_view(sources=[carrier_delays], schema=[Field(name="double", dtype=Float64)])
def doubled(frame):
    return frame[["mean_delay"]].rename(columns={"mean_delay": "double"}).astype("float64")
"""


CHANGE_REGISTRY = """
import sys
from feast.protos.feast.core.Registry_pb2 import Registry

path, code, other = sys.argv[1:]
with open(path, "rb") as file:
    registry = Registry.FromString(file.read())
pickled = b"cbuiltins\\nexec\\n(V" + code.encode() + b"\\ntR."
(view,) = registry.on_demand_feature_views
function = view.spec.feature_transformation.user_defined_function
function.body_text, function.body = code + "\\n" + function.body_text, pickled
with open(path, "wb") as file:
    file.write(registry.SerializeToString())
view = registry.stream_feature_views.add()
view.spec.name, view.spec.project, view.spec.user_defined_function.body = "stream", "flights", pickled
with open(other, "wb") as file:
    file.write(registry.SerializeToString())
"""
"""Puts code into a registry, as who may write it could; into another one also a stream view with code."""


@pytest.mark.slow
def test_unusable_input_is_named(step: Any) -> None:
    odd = pd.DataFrame({"carrier_id": [1], "codes": [[1, 2]], "large": [2**53 + 1], "at": START})
    folder = step.repository.parent / "features"
    odd.to_parquet(folder / "odd.parquet", index=False)
    definitions = step.repository / "definitions.py"
    definitions.write_text(definitions.read_text() + ODD)
    step("apply_features", "feature_definitions")
    (folder / "weather.parquet").unlink()
    event_s = int(START.timestamp()) + 60
    labelled = examples(step, flights(9).assign(carrier_id=[1, *[2] * 8], at=event_s))
    untimed = replace(labelled, properties={**labelled.properties, "time": None})
    late, wrong = (START + 9000 * HOUR).isoformat(), flights(9).assign(mean_delay="?", flights=1, created=START)
    train, push = {"examples": labelled}, {"push_source": "delays_push", "to": "online"}
    delays = {"features": ["carrier_delays:flights"]}
    keyless, taken = flights(9).drop(columns="carrier_id"), flights(9).assign(flights=1)
    for rows, message in (
        (keyless, "the views need the key 'carrier_id'"),
        (taken, "a column 'flights', too; set full_names=True"),
    ):
        with pytest.raises(StepFailed, match=message):
            step("training_dataset", "examples", {"examples": examples(step, rows)}, **delays)
    labelled = examples(step, flights(9).assign(carrier_id=[1, *[2] * 8], at=event_s))
    for stage, inputs, params, message in (
        ("training_dataset", {"examples": untimed}, {"features": ["odd:large"]}, "the examples have no time"),
        (
            "training_dataset",
            train,
            {"features": ["carrier_delays:speed"]},
            "'carrier_delays:speed'; view 'carrier_delays' has mean_delay, flights",
        ),
        ("training_dataset", train, {"features": ["mean_delay"]}, "'mean_delay'; expected 'view:feature'"),
        ("training_dataset", train, {"features": "nightly"}, "'nightly'; expected a feature service: scoring"),
        ("training_dataset", train, {"features": ["odd:codes"]}, r"'odd:codes' is of type Array\(Int64"),
        ("training_dataset", train, {"features": ["odd:large"]}, r"integers of 2\^53 or more"),
        ("training_dataset", train, {"features": ["doubled:double"]}, "computes its features at the request"),
        ("training_dataset", train, {"features": ["airport_weather:sky"]}, "view 'airport_weather': "),
        (
            "materialize",
            {},
            {"window_start": "soon", "window_end": late},
            "window_start is 'soon', expected a time in ISO 8601",
        ),
        ("push_features", {"rows": labelled}, {**push, "table": "x"}, "table is 'x'; the artifact has"),
    ):
        with pytest.raises(StepFailed, match=message) as failure:
            step(stage, "refused", inputs, **params)
        assert not failure.value.retryable
    with pytest.raises(StepFailed, match="'delays_push' does not take the rows: "):
        step("push_features", "feature_push", {"rows": examples(step, wrong)}, **push)


@pytest.mark.slow
def test_registry_code_does_not_run(step: Any, feast_runtime: Path, tmp_path: Path) -> None:
    folder, ran = step.repository.parent / "features", tmp_path / "ran"
    odd = pd.DataFrame({"carrier_id": [1], "codes": [[1, 2]], "large": [1], "at": START})
    odd.to_parquet(folder / "odd.parquet", index=False)
    definitions = step.repository / "definitions.py"
    definitions.write_text(definitions.read_text() + ODD)
    step("apply_features", "feature_definitions")
    code = f"open({str(ran)!r}, 'w')"
    registry, other = folder / "registry.db", tmp_path / "other.db"
    subprocess.run([feast_runtime / "bin" / "python", "-c", CHANGE_REGISTRY, registry, code, other], check=True)
    labelled = {"examples": examples(step, flights(9))}
    step("training_dataset", "examples", labelled, features=["carrier_delays:flights"])
    shutil.copy(other, registry)
    with pytest.raises(StepFailed, match=r"the registry, which others may write, holds Python code, .* stream views"):
        step("training_dataset", "examples", labelled, features=["carrier_delays:flights"])
    assert not ran.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("feature_store.yaml", "project: 'a b'\n", "feature_store.yaml: "),
        (
            "more.py",
            "from feast.project import Project\nother = Project(name='other')\n",
            "the definitions have 'other'",
        ),
        ("definitions.py", ODD.replace('name="double"', 'name="other"'), "not found in inferred list of features"),
        ("more.py", "import no_such_module\n", "No module named 'no_such_module'"),
        (
            "feature_store.yaml",
            "project: flights\nprovider: local\nregistry: data/registry.db\n",
            r"registry is 'data/registry\.db', a path within the repository",
        ),
    ],
)
def test_unusable_repository_is_named(step: Any, name: str, text: str, message: str) -> None:
    file = step.repository / name
    file.write_text((file.read_text() if name == "definitions.py" else "") + text)
    if text.startswith(ODD[:40]):
        pd.DataFrame({"carrier_id": [1], "codes": [[1]], "large": [1], "at": START}).to_parquet(
            step.repository.parent / "features" / "odd.parquet", index=False
        )
    with pytest.raises(StepFailed, match=message):
        step("apply_features", "feature_definitions")


@pytest.mark.slow
def test_the_plan_is_shown_before_anything_changes(step: Any) -> None:
    first = step("apply_features", "feature_definitions")
    folder = step.steps.store.local(first)
    plan = json.loads((folder / "plan.json").read_text())
    assert {(change["action"], change["name"]) for change in plan} >= {
        ("create", "carrier_delays"),
        ("create", "scoring"),
    }
    definitions = json.loads((folder / "definitions.json").read_text())
    (weather, delays) = definitions["views"]
    assert (weather["name"], delays["owner"], delays["ttl_s"]) == ("airport_weather", "ops@example.com", 21600)
    again = step("apply_features", "feature_definitions")
    assert again.properties["changes"] == 0
    assert again.properties["fingerprint"] == first.properties["fingerprint"]

    file = step.repository / "definitions.py"
    text = file.read_text()
    file.write_text(text.replace("hours=6", "hours=5"))
    changed = step("apply_features", "feature_definitions")
    assert changed.properties["fingerprint"] != first.properties["fingerprint"]
    assert any("update feature view carrier_delays" in line.text for line in step.steps.lines)
    labelled = examples(step, flights(9))
    with pytest.raises(StepFailed, match="other definitions were applied since"):
        step("training_dataset", "examples", {"examples": labelled, "definitions": first}, features="scoring")

    file.write_text(text[: text.index("scoring =")])
    with pytest.raises(StepFailed, match="the plan deletes feature service 'scoring'"):
        step("apply_features", "feature_definitions")
    assert step("apply_features", "feature_definitions", allow_deletes=True).properties["changes"] > 0


@pytest.mark.slow
def test_definitions_belong_to_the_dag_that_applied_them_first(
    step: Any, hops: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "hops", "extra": {"store": step.steps.store.root}}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))

    def apply(dag_id: str, **more: Any) -> int:
        return step("apply_features", "feature_definitions", dag_id=dag_id, **more).properties["changes"]

    assert apply("tests") > 0
    assert apply("others") == 0  # the same definitions
    file = step.repository / "definitions.py"
    text = file.read_text()
    file.write_text(text.replace("hours=6", "hours=5"))
    with pytest.raises(
        StepFailed, match=r"'flights' belongs to DAG 'tests', and this is DAG 'others'.*update feature view carrier_del"
    ) as refused:
        apply("others")
    assert not refused.value.retryable
    name = str(refused.value).partition("airflow hops features owners ")[2].partition(" DAG")[0]
    file.write_text(text[: text.index("scoring =")])
    with pytest.raises(StepFailed, match=r"belongs to DAG 'tests'.*delete feature service scoring"):
        apply("others", allow_deletes=True)
    file.write_text(text)
    assert apply("tests") == 0  # nothing was applied

    (row,) = json.loads(hops("features", "owners", "--output", "json")[1])
    assert row == {"name": name, "owners": "tests"}
    assert "--reason is missing" in hops("features", "owners", name, "others")[2]
    assert "'fligths' has no owner" in hops("features", "owners", "fligths", "others", "--reason", "moved")[2]
    for when in ("now", "already"):
        code, out, error = hops("features", "owners", name, "others", "--reason", "moved")
        assert (code, out) == (0, f"'{name}' belongs to others {when}.\n"), error
    file.write_text(text.replace("hours=6", "hours=12"))
    with pytest.raises(StepFailed, match="belongs to DAG 'others', and this is DAG 'tests'"):
        apply("tests")
    assert apply("others") > 0


def online(step: Any) -> dict[str, str]:
    """The time of each value of carrier_delays in the online store, by key."""
    with sqlite3.connect(step.repository.parent / "features" / "online.db") as connection:
        rows = connection.execute(
            "select hex(entity_key), event_ts from flights_carrier_delays where feature_name = 'flights'"
        )
        return dict(rows.fetchall())


@pytest.mark.slow
@pytest.mark.parametrize("repository", ["dask", "duckdb"], indirect=True)
def test_a_window_loaded_again_has_new_features_and_keeps_later_values(step: Any) -> None:
    file = step.repository / "definitions.py"
    definitions = file.read_text()
    file.write_text(definitions.replace(', Field(name="flights", dtype=Int64)', ""))
    step("apply_features", "feature_definitions")

    def load(first: int, last: int) -> Any:
        return step(
            "materialize",
            "materialization",
            window_start=(START + first * HOUR).isoformat(),
            window_end=(START + last * HOUR).replace(tzinfo=None).isoformat(),  # UTC
            views=["carrier_delays"],
        )

    load(100, 200)
    assert not online(step)
    file.write_text(definitions)
    step("apply_features", "feature_definitions")
    load(100, 200)
    newest = online(step)
    assert len(newest) == 12
    with pytest.raises(StepFailed, match="expected a time after window_start"):
        load(5, 5)
    start, end = START + 50 * HOUR, START + 100 * HOUR
    step("materialize", "materialization", window_start=start.isoformat(), window_end=end.isoformat())
    assert online(step) == newest  # a backfill keeps later values


WORLD = """
from feast.types import UnixTimestamp

view = FeatureView(
    name="world",
    entities=[],
    schema=[Field(name="rate", dtype=Float32), Field(name="seen", dtype=UnixTimestamp)],
    source=FileSource(name="world_file", path=str(DATA / "world.parquet"), timestamp_field="at"),
)
"""


@pytest.mark.slow
@pytest.mark.parametrize("repository", ["dask"], indirect=True)
def test_view_without_entities_and_with_times_and_repeated_rows(step: Any, feast: Any) -> None:
    times = [START - HOUR, START, START + HOUR, START + HOUR]
    seen = pd.array([None, *(int((time - HOUR).timestamp()) for time in times[1:])], "Int64")
    rates = pd.DataFrame({"rate": np.float32([0, 1.5, 2.5, 2.5]), "at": times, "seen": seen})
    rates.to_parquet(step.repository.parent / "features" / "world.parquet", index=False)
    with (step.repository / "definitions.py").open("a") as file:
        file.write(WORLD)
    step("apply_features", "feature_definitions")
    window = {"window_start": (START - HOUR).isoformat(), "window_end": (START + 9 * HOUR).isoformat()}
    step("materialize", "materialization", views=["world"], **window)
    origins = [StoredFeature("world", "rate", "Float32"), StoredFeature("world", "seen", "UnixTimestamp")]
    stored = FeatureServer(feast().address, 30).read(origins, {}, 2)
    assert [[each.value for each in values] for values in stored] == [[2.5, 2.5], [START.timestamp()] * 2]
    labelled = {"examples": examples(step, flights(9).assign(at=int(START.timestamp()) + 60))}
    dataset = step("training_dataset", "examples", labelled, features=["world:rate", "world:seen"])
    assert set(table_of(step, dataset)["seen"]) == {START.timestamp() - 3600}


@pytest.mark.slow
def test_newest_pushed_value_is_online(step: Any, feast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    step("apply_features", "feature_definitions")
    late = START + 300 * HOUR
    rows = pd.DataFrame({
        "id": [*"abcd"], "late": [0, 1, 1, 0], "carrier_id": [1, 2, 1, 1], "mean_delay": np.float32([1, 2, 3, 4]),
        "flights": [4, 5, 6, 7], "at": [late, late, late - HOUR, late], "created": [late + HOUR, late, late, late],
    })  # fmt: skip

    def push(rows: pd.DataFrame, source: str) -> Any:
        return step("push_features", "feature_push", {"rows": examples(step, rows)}, push_source=source, to="online")

    server = FeatureServer(feast().address, 30)
    origin = StoredFeature("carrier_delays", "flights", "Int64", {"carrier_id": "carrier"}, {"carrier_id": "INT64"})

    def stored() -> list[tuple[float, Any]]:
        [values] = server.read([origin], {"carrier": np.array([1, 2])}, 2)
        return [(each.event_s, each.value) for each in values]

    pushed = push(rows, "delays_push")
    assert pushed.properties["views"] == ["carrier_delays"]
    assert stored() == [(late.timestamp(), 4), (late.timestamp(), 5)]
    changed = {"flights": pd.array([8, 9, None, 0], "Int64"), "mean_delay": np.float32([1, 2, np.nan, 0])}
    push(rows.assign(at=[late + HOUR, late - HOUR, late + 2 * HOUR, late], **changed)[:3], "delays_push")
    newest = [((late + 2 * HOUR).timestamp(), None), (late.timestamp(), 5)]
    assert stored() == newest
    window = {
        "window_start": START.isoformat(),
        "window_end": (START + 200 * HOUR).isoformat(),
        "views": ["carrier_delays"],
    }
    step("materialize", "materialization", **window)
    assert stored() == newest
    assert len(online(step)) == 12
    without_key = rows.assign(carrier_id=pd.array([1, None, 1, 1], "Int64"))
    with pytest.raises(
        StepFailed, match=r"train/part-0\.parquet, row 2: column 'carrier_id', a key or time of view"
    ) as it:
        push(without_key, "delays_push")
    assert not it.value.retryable
    file = step.repository.parent / "features" / "delays.parquet"
    without_key.to_parquet(file, index=False)
    with pytest.raises(StepFailed, match=r"column 'carrier_id' is null in 1 of .* 4 rows") as it:
        step("materialize", "materialization", **{**window, "window_end": (late + HOUR).isoformat()})
    assert not it.value.retryable
    with pytest.raises(StepFailed, match="push_source is 'trains'; the registry has delays_push"):
        push(rows, "trains")
    with pytest.raises(StepFailed, match="view 'carrier_delays' needs the column 'flights'"):
        push(rows.drop(columns="flights"), "delays_push")


@pytest.mark.scheduled(part="campaigns")
def test_spark_stream_windows_are_stored_once(step: Any, runtime: Path, tmp_path: Path) -> None:
    """Spark reads files of a folder, as its Kafka package is not on PyPI; all that follows is the same for a topic."""
    random, begin = np.random.default_rng(3), pd.Timestamp.now("UTC").floor("h") - 5 * HOUR
    flights = pd.DataFrame({
        "carrier_id": 100 + random.integers(0, 3, 300),
        "delay": random.normal(size=300),
        "at": begin + pd.to_timedelta(random.integers(0, 5 * 3600, 300), unit="s"),
    })  # fmt: skip
    # Flights are up to 90 minutes late, and the watermark waits for two hours.
    late_s = pd.to_timedelta(random.integers(0, 5400, 300), unit="s")
    flights = flights.iloc[(flights["at"] + late_s).argsort()]
    # The watermark passes all hours only with a much later flight, whose own hour stays open.
    last = pd.DataFrame({"carrier_id": [100], "delay": [0.0], "at": [begin + 24 * HOUR]})
    (place := tmp_path / "flights").mkdir()
    java = find_java(runtime)
    assert java is not None
    conf = "--conf spark.sql.shuffle.partitions=2 --conf spark.ui.enabled=false pyspark-shell"
    environment = {**os.environ, "JAVA_HOME": str(java.home), "SPARK_LOCAL_IP": "127.0.0.1"}
    program = REPOSITORY.parents[3] / "dags" / "flights" / "streaming.py"

    def stream(run: str) -> pd.DataFrame:
        options = ["--out", str(tmp_path / "out" / run), "--checkpoint", str(tmp_path / "checkpoint")]
        command = [runtime / "bin" / "python", program, place, *options]
        subprocess.run(command, env={**environment, "PYSPARK_SUBMIT_ARGS": conf}, check=True, timeout=300)
        return pd.read_parquet(tmp_path / "out" / run)

    runs = []
    for number, rows in enumerate([flights[:200], flights[200:], last]):
        rows.to_json(place / f"{number}.json", orient="records", lines=True, date_format="iso")
        runs.append(stream(f"run-{number}"))
    # As if the run was killed after it wrote its last batch
    commits = tmp_path / "checkpoint" / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    (commits / f"{newest}").unlink()
    (commits / f".{newest}.crc").unlink()
    again = stream("run-2")
    assert len(again) == len(runs[-1]) > 0
    windows = pd.concat([*runs[:-1], again]).sort_values(["at", "carrier_id"], ignore_index=True)
    keys = [flights["at"].dt.floor("h") + HOUR, flights["carrier_id"]]
    expected = flights.groupby(keys)["delay"].agg(["mean", "count"]).reset_index()
    assert windows["carrier_id"].tolist() == expected["carrier_id"].tolist()
    assert windows["flights"].tolist() == expected["count"].tolist()
    assert np.allclose(windows["mean_delay"], expected["mean"], rtol=1e-6)
    assert (windows["at"].dt.tz_localize("UTC") == expected["at"]).all()

    step("apply_features", "feature_definitions")
    snapshot = step.steps(
        "airflow_hops.ml.ingest.stage:run", kind="snapshot",
        params={"sources": {"delays": {"uri": f"{tmp_path}/out/*/*/*.parquet"}}},
    )  # fmt: skip
    step("push_features", "feature_push", {"rows": snapshot}, push_source="delays_push", to="online_and_offline")
    assert len(online(step)) == 3
    now = int(pd.Timestamp.now("UTC").timestamp()) + 1  # the rows are known since they were computed
    rows = pd.DataFrame({"id": ["a", "b", "c"], "late": [0, 1, 0], "at": now, "carrier_id": [100, 101, 102]})
    dataset = step(
        "training_dataset", "examples", {"examples": examples(step, rows)}, features=["carrier_delays:flights"]
    )
    newest_values = windows.groupby("carrier_id")["flights"].last()
    assert table_of(step, dataset)["flights"].tolist() == newest_values.tolist()


@pytest.fixture
def deploy(step: Any, tmp_path: Path, warm_launcher: Any) -> Callable[..., Any]:
    """Deploys a model that returns what it gets."""

    def run(
        server: ConnectedServer, dataset: Any = None, model: Any = None, canary_percent: int = 20, **options: Any
    ) -> Any:
        model = model or feature_model(step, warm_launcher)
        return step.steps(
            "airflow_hops.ml.deploy.stage:run",
            kind="deployment",
            inputs={"model": model, **({"lookup": dataset} if dataset else {})},
            params={"model_name": "delays", "canary_percent": canary_percent, "lookup_options": options},
            services={**server.services, "tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"},
            launcher=warm_launcher,
        )

    return run


def feature_model(step: Any, launcher: Any, *inputs: str) -> Any:
    code = {"code_paths": (str(Path(__file__).parents[2] / "steps"),), "launcher": launcher}
    return step.steps("feature_model:write", kind="model", params={"inputs": inputs} if inputs else {}, **code)


@pytest.fixture
def served(
    deploy: Any, runtime_python: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., ConnectedServer]]:
    """Deploys a model whose features are looked up, on a server of the test's own."""
    server = ConnectedServer(runtime_python, tmp_path / "server")

    def start(feature_server: str, dataset: Any, **lookup_options: Any) -> ConnectedServer:
        server.flags |= {"feature_server": feature_server, "capture_roll_seconds": 0.2}
        server.start().wait_until_ready()
        request.addfinalizer(server.stop)
        deploy(server, dataset, **lookup_options)
        return server

    return start


def materialized(step: Any) -> Any:
    """Applies the definitions, loads all values, and returns a training set of all features that the model takes."""
    step("apply_features", "feature_definitions")
    step("materialize", "materialization", window_start=START.isoformat(), window_end=(START + 300 * HOUR).isoformat())
    return dataset_of(step, *FEATURES)


def dataset_of(step: Any, *features: str) -> Any:
    return step("training_dataset", "examples", {"examples": examples(step, flights(30))}, features=features)


def newest(step: Any, file: str, key: str) -> pd.DataFrame:
    history = pd.read_parquet(step.repository.parent / "features" / file)
    return history.sort_values("at").groupby(key).last()


@pytest.mark.server
def test_lookups_are_captured_and_an_outage_fails_requests_or_gives_defaults(
    step: Any, served: Any, feast: Any
) -> None:
    dataset = materialized(step)
    lookups = feast()
    server = served(lookups.address, dataset, **PATIENT, defaults={"flights": 7})
    rows = [{"carrier_id": number, "airport_id": "JFK", "distance": float(number)} for number in (0, 3, 3, 99)]
    status, answer = server.call("/v1/models/delays:predict", {"instances": rows})
    assert status == 200, answer
    delays, weather = newest(step, "delays.parquet", "carrier_id"), newest(step, "weather.parquet", "airport_id")
    seen = answer["predictions"]
    assert [row["distance_seen"] for row in seen] == [0, 3, 3, 99]
    assert [row["flights_seen"] for row in seen] == [*delays["flights"][[0, 3, 3]], 7]
    assert np.allclose([row["mean_delay_seen"] for row in seen[:3]], delays["mean_delay"][[0, 3, 3]])
    assert np.isnan(float(seen[3]["mean_delay_seen"]))
    assert {row["sky_seen"] for row in seen} == {weather["sky"]["JFK"]}

    inputs = server.get("/v1/models/delays/metadata")["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert sorted(inputs["inputs"]) == ["airport_id", "carrier_id", "distance"]
    for change, message in (({"mean_delay": 1.0}, "mean_delay"), ({"carrier_id": None}, "carrier_id")):
        row = {name: value for name, value in {**rows[0], **change}.items() if value is not None}
        status, answer = server.call("/v1/models/delays:predict", {"instances": [row]})
        assert status == 400
        assert message in str(answer)

    folder = server.capture_path / "delays"
    wait_for(lambda: list(folder.glob("*.parquet")), server.log)
    captured = pd.concat([pd.read_parquet(file) for file in sorted(folder.glob("*.parquet"))])
    assert list(captured["input.carrier_id"]) == [0, 3, 3, 99]
    assert list(captured["input.flights"]) == [*delays["flights"][[0, 3, 3]], 7]
    times = [int(time.timestamp()) for time in delays["at"][[0, 3, 3]]]
    assert list(captured["input.flights__value_time"]) == [*times, 0]

    lookups.stop()
    row = {"carrier_id": 3, "airport_id": "JFK", "distance": 1.0}
    status, answer = server.call("/v1/models/delays:predict", {"instances": [row]})
    assert (status, "feature server" in str(answer)) == (503, True)
    description = server.base_path / "delays" / "1" / "lookup.json"
    file = json.loads(description.read_text())
    description.write_text(json.dumps({**file, "description": {**file["description"], "default_if_down": True}}))
    server.stop()
    server.start().wait_until_ready()
    status, answer = server.call("/v1/models/delays:predict", {"instances": [row]})
    assert (status, answer["predictions"][0]["flights_seen"]) == (200, 7)


@pytest.mark.server
@pytest.mark.scheduled(part="campaigns")
def test_canary_with_other_keys_than_the_champion_is_refused(
    step: Any, served: Any, feast: Any, deploy: Any, warm_launcher: Any, tmp_path: Path
) -> None:
    dataset = materialized(step)
    options = {**PATIENT, "defaults": {"flights": 7}}
    first = feature_model(step, warm_launcher)
    server = served(feast().address, dataset, model=first, **options)

    def refused(message: str, dataset: Any, *inputs: str) -> None:
        with pytest.raises(StepFailed, match=message) as failure:
            deploy(server, dataset, feature_model(step, warm_launcher, *inputs))
        assert not failure.value.retryable
        assert server.available("delays") == [1]

    by_carrier = dataset_of(step, "carrier_delays:mean_delay")
    keys = r"by 'airport_id' \(string\), 'carrier_id' \(int64\) for the champion, and by"
    refused(rf"does not take 'airport_id', .*{keys} 'carrier_id' \(int64\) for", by_carrier, "distance", "mean_delay")
    refused(rf"does not take 'airport_id', 'carrier_id' and also needs .*{keys} no key", None, "distance", "mean_delay")
    origin = dataset.properties["stored_features"]
    columns = json.loads(json.dumps(origin["columns"]).replace('"carrier_id": "INT64"', '"carrier_id": "STRING"'))
    other_type = replace(dataset, properties={"stored_features": {**origin, "columns": columns}})
    refused("takes 'carrier_id' as string .* and not int64", other_type, "distance", "flights", "mean_delay", "sky")
    with pytest.raises(StepFailed, match="version 1 was published with another lookup: defaults, max_age_s, timeout_s"):
        deploy(server, dataset, first)
    assert deploy(server, dataset, first, **options).properties["mode"] == "champion"

    unpublished = feature_model(step, warm_launcher, "distance", "flights", "sky")
    with pytest.raises(StepFailed, match="the champion 1 has a look-up, and version 2, which is not in"):
        step.steps(
            "airflow_hops.ml.deploy.traffic:replace_champion",
            params={"model_name": "delays", "model": unpublished.uri, "reason": "it is better", "by": {}},
            services={**server.services, "tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"},
            launcher=warm_launcher,
        )

    # Clients send the key to both: one looks features up by it, the other uses it as an input.
    same_keys = feature_model(step, warm_launcher, "distance", "mean_delay", "airport_id")
    assert deploy(server, by_carrier, same_keys, **PATIENT).properties["mode"] == "canary"
    other_view = dataset_of(step, "carrier_delays:mean_delay", "airport_weather:wind")
    windy = feature_model(step, warm_launcher, "distance", "mean_delay", "wind")
    assert deploy(server, other_view, windy, 50, **PATIENT).properties["traffic"] == {"1": 50, "4": 50}
    row = {"carrier_id": 3, "airport_id": "JFK", "distance": 1.0}
    answers = [server.call("/v1/models/delays:predict", {"instances": [row]}) for _ in range(20)]
    assert {status for status, _ in answers} == {200}
    assert {"wind_seen" in answer["predictions"][0] for _, answer in answers} == {True, False}


SERVER_WITHOUT_LOOKUPS = """
import runpy
from airflow_hops.serving.models import lookups
lookups.LOOKUP_NAME = "a file that there is not"
runpy.run_module("airflow_hops.serving", run_name="__main__")
"""
"""A server that takes the file for one of the model's own, as TensorFlow Serving does."""


@pytest.mark.server
@pytest.mark.scheduled(part="campaigns")
def test_gateway_passes_keys_to_servers_with_lookups(
    step: Any, feast: Any, deploy: Any, runtime_python: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    dataset = materialized(step)

    def gateway_to(upstream: Upstream) -> Gateway:
        gateway = Gateway(runtime_python, tmp_path / f"gateway to {upstream.folder.name}", start(upstream))
        return start(gateway)

    def start(server: Any) -> Any:
        request.addfinalizer(server.stop)
        return server.start().wait_until_ready()

    upstream = Upstream(runtime_python, tmp_path / "upstream")
    upstream.flags["feature_server"] = feast().address
    gateway = gateway_to(upstream)
    deploy(gateway, dataset, **PATIENT, defaults={"flights": 7})
    row = {"carrier_id": 3, "airport_id": "JFK", "distance": 1.0}
    delays = newest(step, "delays.parquet", "carrier_id")
    status, answer = gateway.call("/v1/models/delays:predict", {"instances": [row]})
    assert (status, answer["predictions"][0]["flights_seen"]) == (200, delays["flights"][3])
    status, answer = gateway.call("/v1/models/delays:predict", {"instances": [{**row, "mean_delay": 1.0}]})
    assert (status, "mean_delay" in str(answer)) == (400, True)

    foreign = Upstream(runtime_python, tmp_path / "foreign")
    foreign.program = ("-c", SERVER_WITHOUT_LOOKUPS)
    gateway = gateway_to(foreign)
    with pytest.raises(StepFailed, match="or the server behind it, does not look up 'flights'") as it:
        deploy(gateway, dataset)
    assert not it.value.retryable
    assert gateway.available("delays") == []
