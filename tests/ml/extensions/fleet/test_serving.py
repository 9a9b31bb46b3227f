"""A fleet behind the model server: each row is answered by the model of its segment."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_process import Start, predict_request, runtime_variables

from airflow_hops.core.errors import BadInput
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.extensions.fleet.core.packs import LINEAR, ONNX, Fleet
from airflow_hops.extensions.fleet.serving.loaded import MODELS, LoadedModels
from airflow_hops.extensions.fleet.serving.sessions import GraphModel
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flag_parser import parse_flags
from airflow_hops.serving.models.formats import ModelOptions, open_model
from airflow_hops.serving.models.servable import Call
from airflow_hops.testing.model_formats import ModelFormatContract
from airflow_hops.testing.server_parts import ServerPartContract
from tests.ml.extensions.fleet.packed_fleets import (
    COLUMNS,
    PackedFleet,
    graph,
    random_rows,
    row_of,
    write_packed_fleet,
)

SHOPS = ["A1", "a1", "a1 ", "Å", "A\u030a", "7", "shop/../7", "x" * 1024]
PROBLEMS = ("regression", "binary", "multiclass")
OUTPUT = {"regression": "prediction", "binary": "probability", "multiclass": "probabilities"}


class TestFormat(ModelFormatContract):
    format = "fleet"
    rows: ClassVar[Mapping[str, np.ndarray]] = {
        "shop": np.array([b"A1", b"new", b"a1 "], object),
        **random_rows(np.random.default_rng(0), 3),
    }

    def write(self, folder: Path) -> None:
        write_packed_fleet(folder, SHOPS)


class TestPart(ServerPartContract):
    name = "fleet"

    @pytest.fixture
    def arguments(self) -> Any:
        return ["--fleet_memory_bytes=1000000"]


@pytest.fixture
def memory() -> Iterator[Callable[[int], None]]:
    """Sets the limit of the process for a test."""
    limit = MODELS.limit_bytes
    yield lambda size: setattr(MODELS, "limit_bytes", size)
    MODELS.limit_bytes = limit


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[PackedFleet, Any]]:
    folder = tmp_path_factory.mktemp("fleets")
    made = {}
    for number, problem in enumerate(PROBLEMS):
        fleet = write_packed_fleet(folder / problem, SHOPS, problem=problem, seed=number)
        made[problem] = fleet, open_model("shops", 1, fleet.folder, ModelOptions())
    return made


def _check(fleet: PackedFleet, answers: np.ndarray, keys: list[str], columns: Mapping[str, np.ndarray]) -> None:
    assert len(answers) == len(keys)
    for row, key in enumerate(keys):
        assert answers[row].tolist() == pytest.approx(fleet.expected(key, row_of(columns, row)), rel=1e-4, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    problem=st.sampled_from(PROBLEMS),
    keys=st.lists(st.sampled_from([*SHOPS, "new", "A1\x00"]), max_size=40),
    seed=st.integers(0, 1000),
    limit=st.sampled_from([0, 700, 2000, 2**28]),
)
def test_each_row_is_answered_by_its_segment(
    fleets: dict[str, tuple[PackedFleet, Any]], problem: str, keys: list[str], seed: int, limit: int
) -> None:
    """Whatever comes together, in whatever order, and however few models fit into memory."""
    fleet, servable = fleets[problem]
    columns = random_rows(np.random.default_rng(seed), len(keys))
    shops = np.array([key.encode() for key in keys], object)
    usual, MODELS.limit_bytes = MODELS.limit_bytes, limit
    try:
        outputs = servable.predict({"shop": shops, **columns})
    finally:
        MODELS.limit_bytes = usual
    _check(fleet, outputs[OUTPUT[problem]], keys, columns)
    if problem == "multiclass":
        likeliest = outputs["probabilities"].argmax(axis=1) if keys else []
        assert [name.decode() for name in outputs["class"]] == [fleet.classes[number] for number in likeliest]


@pytest.mark.parametrize("formats", [[LINEAR], [ONNX], [ONNX, LINEAR]])
def test_segments_of_integers_and_batches(tmp_path: Path, formats: list[str]) -> None:
    fleet = write_packed_fleet(tmp_path / "1", ["-3", "7", "70"], segment_type="int64", formats=formats, pooled_every=9)
    columns = random_rows(np.random.default_rng(3), 6)
    keys = [7, -3, 0, 70, 7, 2**62]
    for flags in ([], ["--enable_batching"]):
        options = ModelOptions.of(parse_flags(["--model_base_path=/m", *flags])[0])
        servable = open_model("shops", 1, fleet.folder, options)
        outputs = servable.predict({"shop": np.array(keys), **columns})
        _check(fleet, outputs["prediction"], [str(key) for key in keys], columns)
        servable.close()


def test_one_row_has_the_same_answer_in_any_request(fleets: dict[str, tuple[PackedFleet, Any]]) -> None:
    fleet, servable = fleets["binary"]
    linear = [key for key in SHOPS if (place := Fleet(fleet.folder).place(key)) and place.format == LINEAR]
    columns = random_rows(np.random.default_rng(4), 500)
    shops = np.array([linear[row % len(linear)].encode() for row in range(500)], object)
    together = servable.predict({"shop": shops, **columns})["probability"]
    for rows in (slice(7, 8), slice(0, 2), slice(100, 333)):
        some = {name: values[rows] for name, values in {"shop": shops, **columns}.items()}
        assert (servable.predict(some)["probability"] == together[rows]).all()


def test_columns_that_are_not_the_fleets_are_refused(fleets: dict[str, tuple[PackedFleet, Any]]) -> None:
    servable = fleets["regression"][1]
    good = {"shop": np.array([b"A1", b"A1"], object), **random_rows(np.random.default_rng(0), 2)}
    for changed, message in (
        ({name: values for name, values in good.items() if name != "shop"}, "Missing but required: {shop}"),
        ({**good, "shop": np.array([b"A1", b"\xc3"], object)}, "'shop' is b.*expected UTF-8"),
        ({**good, "shop": np.array([1, 2])}, "shop"),
        ({**good, "shop": np.array([math.nan, 1.0])}, "shop"),
        ({**good, "shop": np.array([b"A1"], object)}, "differ in their 0th dimension"),
        ({**good, "shop": np.array([[b"A1", b"b"]] * 2, object)}, r"input shop has shape \[2, 2\]"),
        ({**good, "stock": np.array([0.0, -math.inf])}, "'stock' is -inf in row 1"),
        ({**good, "day": np.array([1.0, 2.0])}, "day"),
    ):
        with pytest.raises(ServingError, match=message):
            servable.predict(changed)


DAMAGED = {
    "no signature": (lambda folder: (folder / "signature.json").unlink(), "signature.json"),
    "a missing column": (lambda folder: _signature(folder, columns=list(COLUMNS)[1:]), "expected columns.*price"),
    "no segment": (lambda folder: _signature(folder, segment=None), "expected columns.*shop"),
    "no problem": (lambda folder: _signature(folder, problem=None), "one problem"),
    "a transform graph": (lambda folder: (folder / "transform_graph").mkdir(), "transform_graph|no 'model'"),
    "more classes than weights": (
        lambda folder: _signature(folder, problem="multiclass", classes=["a", "b"]),
        "the pooled model: .*bytes; expected",
    ),
    "a damaged pooled model": (lambda folder: _flip(folder, None), "the pooled model: .*000.bin"),
}


def _signature(folder: Path, columns: Any = COLUMNS, segment: str | None = "string", **changes: Any) -> None:
    path = folder / "signature.json"
    document = json.loads(path.read_text())
    types = {**({"shop": segment} if segment else {}), **{name: changes.get(name, COLUMNS[name]) for name in columns}}
    document["columns"] = [{"name": name, "type": kind} for name, kind in types.items()]
    document |= {name: value for name, value in changes.items() if name in ("problem", "classes")}
    path.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))


def _flip(folder: Path, segment: str | None) -> None:
    fleet = Fleet(folder)
    place = fleet.description.pooled if segment is None else fleet.place(segment)
    assert place is not None
    pack = folder / "packs" / f"{place.pack:03d}.bin"
    content = bytearray(pack.read_bytes())
    content[place.offset + place.length // 2] ^= 0xFF
    pack.write_bytes(content)


@pytest.mark.parametrize("name", DAMAGED)
def test_a_folder_that_contradicts_itself_is_not_served(tmp_path: Path, name: str) -> None:
    write_packed_fleet(tmp_path / "1", ["a", "b"], formats=[LINEAR])
    damage, message = DAMAGED[name]
    damage(tmp_path / "1")
    with pytest.raises(ServingError, match=message):
        open_model("shops", 1, tmp_path / "1", ModelOptions())


def test_a_damaged_model_fails_its_segment_alone(tmp_path: Path) -> None:
    fleet = write_packed_fleet(tmp_path / "1", ["a", "b", "c"], formats=[LINEAR], pooled_every=9)
    _flip(fleet.folder, "b")
    servable = open_model("shops", 1, fleet.folder, ModelOptions())
    columns = random_rows(np.random.default_rng(0), 1)
    for _ in range(2):
        with pytest.raises(ServingError, match=r"segment 'b': .*000\.bin.*damaged"):
            servable.predict({"shop": np.array([b"b"], object), **columns})
    for key in ("c", "new"):
        answers = servable.predict({"shop": np.array([key.encode()], object), **columns})["prediction"]
        _check(fleet, answers, [key], columns)
    servable.close()


def _with_loop(operator: bytes) -> bytes:
    return graph(np.zeros((1, 3)), "regression").replace(b'"\x06MatMul', operator)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "does not load"),
        (b"\x00" * 100, "does not load"),
        (graph(np.zeros((1, 3)), "regression")[:-9], "cannot be read"),
        (graph(np.zeros((1, 4)), "regression"), "takes 3 columns; the encoding has 2"),
        (graph(np.zeros((1, 3)), "regression").replace(b"MatMul", b"MatMuX"), "does not load"),
        (_with_loop(b'"\x04Loop\x00\x00'), "Loop or a Scan"),
        (_with_loop(b'"\x84\x00Scan\x00'), "Loop or a Scan"),
        (_with_loop(b"\xa2\x00\x04Loop\x00"), "Loop or a Scan"),
    ],
)
def test_hostile_graphs_are_refused(payload: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        GraphModel(payload, 2)


def test_a_graph_reads_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx

    monkeypatch.chdir(tmp_path)
    for size in (4, 4000):
        weights = np.zeros((1, 1 + size))
        model = onnx.ModelProto.FromString(graph(weights, "regression"))
        (first,) = (each for each in model.graph.initializer if each.name == "w")
        (tmp_path / "secret").write_bytes(first.raw_data)
        first.ClearField("raw_data")
        first.data_location = onnx.TensorProto.EXTERNAL
        first.external_data.add(key="location", value="secret")
        with pytest.raises(BadInput, match="names a 'location'"):
            GraphModel(model.SerializeToString(), size)


def held(models: LoadedModels) -> tuple[int, int]:
    """Returns how many models are in memory, and their bytes."""
    count, size, *_ = (int(metric.samples[0].value) for metric in models.collect() if metric.samples)
    return count, size


def test_models_leave_when_they_were_asked_for_the_longest_ago() -> None:
    loads: list[str] = []

    def get(models: LoadedModels, key: str, size: int = 10) -> str:
        def load() -> tuple[str, int]:
            loads.append(key)
            return key.upper(), size

        return str(models.get("owner", key, load))

    models = LoadedModels(30)
    for key in "abcabcdab":
        assert get(models, key) == key.upper()
    assert loads == ["a", "b", "c", "d", "a", "b"]  # d pushes a out, then a pushes b out, and b c
    assert held(models) == (3, 30)
    assert get(models, "huge", 31) == "HUGE"
    assert held(models) == (0, 0)
    get(models, "a")
    models.get("other", "a", lambda: ("A", 7))
    models.drop("owner")
    assert held(models) == (1, 7)


@pytest.mark.parametrize("outcome", ["loaded", "fails"])
def test_concurrent_requests_load_a_model_once_without_blocking_others(outcome: str) -> None:
    models, loads = LoadedModels(100), []
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> tuple[str, int]:
        loads.append(1)
        begun.set()
        assert go_on.wait()
        if outcome == "fails":
            raise BadInput("damaged")
        return "slow", 1

    def ask() -> str:
        try:
            return str(models.get(1, "slow", slow))
        except BadInput as error:
            return str(error)

    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(ask) for _ in range(6)]
        assert begun.wait()
        assert models.get(1, "quick", lambda: ("quick", 1)) == "quick"
        assert models.get(1, "quick", lambda: pytest.fail("loaded twice")) == "quick"
        go_on.set()
        answers = {each.result() for each in asked}
    if outcome == "loaded":
        assert (answers, loads) == ({"slow"}, [1])
    else:
        assert answers == {"damaged"}
        assert held(models)[0] == 1
        assert models.get(1, "slow", lambda: ("again", 1)) == "again"


def test_many_threads_get_right_answers_within_the_limit(
    fleets: dict[str, tuple[PackedFleet, Any]], memory: Callable[[int], None]
) -> None:
    memory(400_000)  # a few graphs at a time
    fleet, servable = fleets["regression"]

    def ask(seed: int) -> int:
        rng = np.random.default_rng(seed)
        keys = [SHOPS[number] for number in rng.integers(len(SHOPS), size=5)]
        columns = random_rows(rng, 5)
        shops = np.array([key.encode() for key in keys], object)
        _check(fleet, servable.predict({"shop": shops, **columns})["prediction"], keys, columns)
        return held(MODELS)[1]

    with ThreadPoolExecutor(8) as threads:
        assert max(threads.map(ask, range(200))) <= 400_000


_MEMORY = """
import sys
from pathlib import Path
import numpy as np
from airflow_hops.extensions.fleet.core.packs import Fleet
from airflow_hops.extensions.fleet.serving.loaded import MODELS
from airflow_hops.serving.models.formats import open_model
from airflow_hops.serving.models.formats import ModelOptions

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

MODELS.limit_bytes = int(sys.argv[2])
folder = Path(sys.argv[1])
keys = list(Fleet(folder).entries)
servable = open_model("shops", 1, folder, ModelOptions())
row = {"price": np.zeros(1, "f4"), "stock": np.zeros(1), "day": np.array([b"Mon"], object), "size": np.zeros(1, int)}
def ask(some):
    for key in some:
        servable.predict({"shop": np.array([key.encode()], object), **row})
ask(keys[:20])
MODELS.drop(servable)
begin = resident()
ask(keys)
count, size = (int(metric.samples[0].value) for metric in list(MODELS.collect())[:2])
print(size, count, resident() - begin)
"""


def test_bytes_of_models_are_those_that_the_process_grows_by(tmp_path: Path) -> None:
    fleet = write_packed_fleet(tmp_path / "1", [f"{n:04}" for n in range(600)], formats=[ONNX], padding=60_000)
    results = {}
    for limit in (2**30, 8_000_000):
        command = [sys.executable, "-c", _MEMORY, str(fleet.folder), str(limit)]
        done = subprocess.run(command, env=runtime_variables(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        results[limit] = counted, models, grown = tuple(map(int, done.stdout.split()))
        assert counted <= limit
        assert 0.6 * grown - 4_000_000 <= counted <= 1.6 * grown + 4_000_000, (counted, models, grown)
    assert results[2**30][1] == 450  # all with a model of their own
    assert results[8_000_000][1] < 300


def test_a_fleet_is_one_model_of_the_server(start_server: Start, tmp_path: Path) -> None:
    fleet = write_packed_fleet(tmp_path / "shops" / "1", SHOPS)
    (tmp_path / "monitoring").write_text("prometheus_config { enable: true }")
    server = start_server(
        model_name="shops",
        model_base_path=tmp_path / "shops",
        monitoring_config_file=tmp_path / "monitoring",
        fleet_memory_bytes=200_000,
        max_num_load_retries=0,
    )
    keys = ["a1", "new", "A1", "a1"]
    columns = random_rows(np.random.default_rng(5), 4)
    columns["price"][:] = [8, 9, 10, 11]
    rows = [{"shop": key, **row_of(columns, row)} for row, key in enumerate(keys)]
    answers = np.array(server.predict("shops", {"instances": rows})["predictions"])
    _check(fleet, answers, keys, columns)
    with ModelServerClient(server.address) as client:
        shops = np.array([key.encode() for key in keys], object)
        _check(fleet, client.predict("shops", {"shop": shops, **columns}).outputs["prediction"], keys, columns)
    inputs = [
        {"name": "shop", "datatype": "BYTES", "shape": [4], "data": keys},
        {"name": "price", "datatype": "FP32", "shape": [4], "data": columns["price"].tolist()},
        {"name": "stock", "datatype": "FP64", "shape": [4], "data": columns["stock"].tolist()},
        {"name": "day", "datatype": "BYTES", "shape": [4], "data": [row["day"] for row in rows]},
        {"name": "size", "datatype": "INT64", "shape": [4], "data": columns["size"].tolist()},
    ]
    (output,) = server.post("/v2/models/shops/infer", {"inputs": inputs})["outputs"]
    _check(fleet, np.array(output["data"]), keys, columns)
    status, message = server.error("/v1/models/shops:predict", {"instances": [{**rows[0], "shop": ""}]})
    assert (status, "'shop' is empty in row 0" in message) == (400, True)
    status, message = server.error("/v1/models/shops:predict", {"instances": [{**rows[0], "shop": None}]})
    assert status == 400
    examples = [{name: value for name, value in row.items() if name != "day"} | {"day": "Mon"} for row in rows[:1]]
    _, body = server.call("/v1/models/shops:regress", {"examples": examples})
    columns["day"][0] = b"Mon"
    _check(fleet, np.array(body["results"]), keys[:1], columns)
    metrics = _metrics(server)
    # Warm-up requests have no segment
    assert metrics['hops_fleet_rows_total{model_name="shops",state="unknown"}'] == 3
    assert metrics['hops_fleet_rows_total{model_name="shops",state="pooled"}'] == 3
    assert metrics['hops_fleet_rows_total{model_name="shops",state="own"}'] == 7
    assert 0 < metrics["hops_fleet_bytes"] <= 200_000
    shutil.copytree(fleet.folder, tmp_path / ".2")
    _flip(tmp_path / ".2", None)
    (tmp_path / ".2").rename(tmp_path / "shops" / "2")
    server.wait_for_versions("shops", {1: "AVAILABLE", 2: "END"})
    assert "000.bin" in server.log()


def _metrics(server: Any) -> dict[str, float]:
    import urllib.request

    with urllib.request.urlopen(f"{server.url}/monitoring/prometheus/metrics") as response:
        lines = response.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_deadlines_end_a_request_of_many_segments(fleets: dict[str, tuple[PackedFleet, Any]]) -> None:
    servable = fleets["regression"][1]
    columns = random_rows(np.random.default_rng(0), len(SHOPS))
    request = predict_request("shops", shop=np.array([key.encode() for key in SHOPS], object), **columns)
    with pytest.raises(ServingError) as raised:
        servable.answer(Call(Method.PREDICT, request.SerializeToString(), deadline_s=0.0))
    assert raised.value.code.name == "DEADLINE_EXCEEDED"
