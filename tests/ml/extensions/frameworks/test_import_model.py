"""Models that were trained elsewhere: what of a folder becomes a model artifact, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
import tensorflow as tf
from echo_models import write_function
from onnx import TensorProto, helper
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.frameworks import scikit_learn
from airflow_hops.extensions.frameworks.ml import import_model
from airflow_hops.extensions.frameworks.ml.import_model import check_model, find_model
from airflow_hops.extensions.frameworks.ml.import_model.stage import fetch_source
from airflow_hops.ml.evaluate import stage as evaluate
from airflow_hops.ml.metrics.scoring import ScoredModel
from airflow_hops.ml.models.export import export_model
from tests import flights_examples
from tests.ml.extensions.frameworks.exported import GRAPES, WINE, WINES

ROWS = pd.DataFrame({"age": np.arange(40.0) % 9, "visits": np.arange(40.0) % 5})
LATE = (ROWS["age"] + ROWS["visits"] > 6).astype("int64").to_numpy()


@pytest.fixture
def examples(store: Any) -> Artifact:
    table = ROWS.assign(late=LATE, key=[f"row-{number}" for number in range(len(ROWS))])
    facts = {"label": "late", "key": "key", "time": None, "classes": ["punctual", "late"], "problem": "binary"}
    return flights_examples.write_examples(store, {"train": table, "eval": table[:15]}, **facts)


@pytest.fixture
def brought(run_stage: Callable[..., Any], examples: Artifact) -> Callable[..., Artifact]:
    def run(source: Path, **params: Any) -> Artifact:
        result = run_stage(import_model.run, kind="model", inputs={"examples": examples}, source=str(source), **params)
        assert isinstance(result, Artifact)
        return result

    return run


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX graph of a matrix, as any tool leaves it, in a folder as MLflow makes it."""
    from skl2onnx import to_onnx

    folder = tmp_path_factory.mktemp("elsewhere")
    estimator = LogisticRegression().fit(ROWS.to_numpy("float32"), LATE)
    graph = to_onnx(estimator, ROWS.to_numpy("float32")[:1], options={"zipmap": False}, target_opset=18)
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    (folder / "MLmodel").write_text("flavors:\n  onnx: {}\n  python_function: {}\n")
    (folder / "conda.yaml").write_text("dependencies: []\n")
    return folder


def test_matrix_graph_takes_named_columns(brought: Callable[..., Artifact], graph: Path, store: Any) -> None:
    model = brought(graph, features=["age", "visits"])
    folder = store.local(model)
    assert {path.name for path in (folder / "onnx").iterdir()} == {"model.onnx", "signature.json"}
    properties = ModelProperties.of(model)
    assert (properties.format, properties.problem, properties.classes) == ("onnx", "binary", ("punctual", "late"))
    assert properties.inputs == properties.features == ("age", "visits") and properties.synchronized
    assert json.loads((folder / "import.json").read_text())["rows"] == 15
    served = ScoredModel(folder / "onnx")
    result = served.predict({name: ROWS[name].to_numpy("float32") for name in ROWS})
    assert ((result > 0.5) == LATE).mean() > 0.9
    with pytest.raises(BadInput, match=r"takes a matrix of 2 columns, and features names 1; expected the columns"):
        brought(graph, features=["age"])
    with pytest.raises(BadInput, match=r"there is no column 'miles'"):
        brought(graph, features=["age", "miles"])


@pytest.mark.parametrize(
    ("estimator", "names"),
    [(LogisticRegression(), (0, 1)), (KNeighborsClassifier(3), ("punctual", "late"))],
    ids=["numbers", "names"],
)
def test_probability_maps_become_a_tensor(
    brought: Callable[..., Artifact], estimator: Any, names: tuple[Any, Any], store: Any, tmp_path: Path
) -> None:
    """A graph as skl2onnx leaves it by default."""
    from skl2onnx import to_onnx

    matrix = ROWS.to_numpy("float32")
    estimator.fit(matrix, np.array(names)[LATE])
    (tmp_path / "model.onnx").write_bytes(to_onnx(estimator, matrix[:1], target_opset=18).SerializeToString())
    for options in ({}, {"prediction": "output_probability"}):
        model = brought(tmp_path / "model.onnx", features=["age", "visits"], **options)
        order = ("punctual", "late") if names == (0, 1) else ("late", "punctual")
        assert ModelProperties.of(model).classes == order
        result = ScoredModel(store.local(model) / "onnx").predict({name: matrix[:, n] for n, name in enumerate(ROWS)})
        np.testing.assert_allclose(result, estimator.predict_proba(matrix)[:, 1], atol=1e-6)
    with pytest.raises(BadInput, match=r"output_label.* expected"):
        brought(tmp_path / "model.onnx", features=["age", "visits"], prediction="nothing")


def test_own_export_is_imported_unchanged(brought: Callable[..., Artifact], tmp_path: Path) -> None:
    estimator = LogisticRegression().fit(ROWS, LATE)
    target = Target("late", classes=("punctual", "late"))
    export_model(estimator, tmp_path, framework="sklearn", target=target, sample=ROWS)
    assert ModelProperties.of(brought(tmp_path, framework="sklearn")).framework == "sklearn"
    with pytest.raises(BadInput, match=r"features and prediction are in .*signature.json already"):
        brought(tmp_path / "onnx" / "model.onnx", features=["age", "visits"])


def test_further_labels_match_outputs(
    run_stage: Callable[..., Any], store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wait = ROWS["age"] * 2.0 + 1.0
    table = ROWS.assign(late=LATE, wait=wait, cost=wait, key=[f"row-{number}" for number in range(len(ROWS))])
    report = {"wait": {"problem": "regression"}, "cost": {"problem": "regression"}}
    facts = {"label": "late", "key": "key", "time": None, "problem": "binary", "more_labels": report}
    examples = flights_examples.write_examples(store, {"train": table, "eval": table[:15]}, **facts)
    target = Target.from_properties("late", "binary", None, None, {"wait": report["wait"]})
    estimators = {"late": LogisticRegression().fit(ROWS, LATE), "wait": LinearRegression().fit(ROWS, wait)}
    export_model(estimators, tmp_path, framework="sklearn", target=target, sample=ROWS)
    inputs = {"examples": examples}
    model = run_stage(import_model.run, kind="model", inputs=inputs, source=str(tmp_path / "onnx"))
    assert ModelProperties.of(model).more_labels == {"wait": {"problem": "regression"}}
    assert "the model has no output for the label 'cost', and will not be evaluated on it" in caplog.text
    head = ScoredModel(store.local(model) / "onnx").head("wait_")
    assert head is not None
    asked = {name: ROWS[name].to_numpy("float32") for name in ROWS}
    np.testing.assert_allclose(head.predict(asked), wait, rtol=1e-4)


def test_further_label_keeps_class_order(run_stage: Callable[..., Any], store: Any, tmp_path: Path) -> None:
    lost = (ROWS["visits"] > 2).astype("int64").to_numpy()
    table = ROWS.assign(late=LATE, lost=lost, key=[f"row-{number}" for number in range(len(ROWS))])
    facts = {"label": "late", "key": "key", "time": None, "problem": "binary"}

    def told(classes: list[str]) -> dict[str, Any]:
        return {"lost": {"problem": "binary", "classes": classes}}

    data = {"train": table, "eval": table[:15]}
    examples = flights_examples.write_examples(store, data, more_labels=told(["no", "yes"]), **facts)
    estimators = {"late": LogisticRegression().fit(ROWS, LATE), "lost": LogisticRegression().fit(ROWS, 1 - lost)}
    for classes in (["yes", "no"], ["off", "on"]):
        target = Target.from_properties("late", "binary", None, None, told(classes))
        export_model(estimators, tmp_path / classes[0], framework="sklearn", target=target, sample=ROWS)
    inputs = {"examples": examples}
    model = run_stage(import_model.run, kind="model", inputs=inputs, source=str(tmp_path / "yes" / "onnx"))
    assert ModelProperties.of(model).more_labels == told(["yes", "no"])
    inputs = {"model": model, "examples": examples}
    result = run_stage(evaluate.run, kind="evaluation", inputs=inputs, model_name="parcels")
    assert result.metrics["eval_lost/auc"] > 0.9
    with pytest.raises(BadInput, match=r"the model's classes of 'lost' are off, on; the examples' are no, yes"):
        run_stage(import_model.run, kind="model", inputs={"examples": examples}, source=str(tmp_path / "off" / "onnx"))


def test_skops_estimator_gives_probabilities(brought: Callable[..., Artifact], tmp_path: Path, store: Any) -> None:
    scikit_learn.save(LogisticRegression().fit(ROWS, LATE), tmp_path / "1", sample=ROWS.astype("float32"))
    model = brought(tmp_path / "1")
    assert (ModelProperties.of(model).format, ModelProperties.of(model).framework) == ("skops", "sklearn")
    assert ScoredModel(store.local(model) / "skops").output == "probability"


def test_estimator_that_chooses_another_class_than_is_served_is_refused(
    run_stage: Callable[..., Any], store: Any, tmp_path: Path
) -> None:
    wines = WINES.astype("float32")
    table = wines.assign(grape=GRAPES, key=[f"row-{number}" for number in range(len(wines))])
    facts = {"label": "grape", "key": "key", "time": None, "classes": [*WINE.classes], "problem": "multiclass"}
    inputs = {"examples": flights_examples.write_examples(store, {"train": table, "eval": table}, **facts)}
    tied, scaled = (tmp_path / name for name in ("tied", "scaled"))
    scikit_learn.save(SGDClassifier(loss="log_loss", random_state=0).fit(wines, GRAPES), tied, sample=wines)
    scikit_learn.save(make_pipeline(StandardScaler(), LogisticRegression()).fit(wines, GRAPES), scaled, sample=wines)
    assert run_stage(import_model.run, kind="model", inputs=inputs, source=str(scaled)).kind == "model"
    with pytest.raises(BadInput, match=r"predict\(\) chooses another one in \d+ of \d+ rows, such as row \d+"):
        run_stage(import_model.run, kind="model", inputs=inputs, source=str(tied))


def test_classes_are_in_the_order_of_the_models_own_outputs(brought: Callable[..., Artifact], tmp_path: Path) -> None:
    from skl2onnx import to_onnx

    matrix, turned = ROWS.astype("float32"), Target("late", classes=("late", "punctual"))
    # scikit-learn sorts names: the second class is the punctual one, other than in the examples.
    for name in ("punctual", "delayed"):
        words = np.where(LATE, "late", name)
        scikit_learn.save(LogisticRegression().fit(matrix, words), tmp_path / name / "skops", sample=matrix)
        fitted = LogisticRegression().fit(matrix.to_numpy(), words)
        graph = to_onnx(fitted, matrix.to_numpy(), options={"zipmap": False})
        (tmp_path / name / "model.onnx").write_bytes(graph.SerializeToString())
    early = LogisticRegression().fit(ROWS, 1 - LATE)
    export_model(early, tmp_path / "exported", framework="sklearn", target=turned, sample=ROWS)
    for source, features in (("skops", None), ("model.onnx", list(ROWS)), ("../exported", None)):
        model = brought((tmp_path / "punctual" / source).resolve(), features=features)
        assert ModelProperties.of(model).classes == ("late", "punctual"), source
    for source, features in (("skops", None), ("model.onnx", list(ROWS))):
        with pytest.raises(
            BadInput, match=r"the model's classes of 'late' are delayed, late; the examples' are punctual, late"
        ):
            brought(tmp_path / "delayed" / source, features=features)


@pytest.mark.parametrize(
    ("column", "output", "message"),
    [
        ("visits", "probability", None),
        ("miles", "probability", "there is no column 'miles', which the signature of"),
        ("visits", "dense", "has none of the outputs 'proba"),
        ("late", "probability", "the model takes 'late', the label"),
    ],
)
def test_a_saved_model_is_taken_by_its_own_signature(
    brought: Callable[..., Artifact], tmp_path: Path, column: str, output: str, message: str | None
) -> None:
    write_function(tmp_path, lambda values: {output: tf.sigmoid(values - 3)}, **{column: tf.float32})
    if message is None:
        properties = ModelProperties.of(brought(tmp_path))
        assert (properties.folder, properties.inputs, properties.framework) == (
            "saved_model",
            ("visits",),
            "tensorflow",
        )
        return
    with pytest.raises(BadInput, match=message):
        brought(tmp_path)


def test_renamed_classes_and_outputs_outside_probabilities_are_refused(tmp_path: Path) -> None:
    names = ("flat", "shed", "house")

    def name_likeliest(size: Any) -> dict[str, Any]:
        probabilities = tf.one_hot(size, 3)
        return {
            "probabilities": probabilities,
            "class": tf.gather(tf.constant(names), tf.argmax(probabilities, axis=1)),
        }

    named = write_function(tmp_path / "named", name_likeliest, size=tf.int64)
    outside = write_function(
        tmp_path / "outside", lambda size: {"probabilities": tf.one_hot(size, 3) * 3 - 1}, size=tf.int64
    )
    ROWS.assign(size=np.arange(40) % 3).to_parquet(tmp_path / "rows.parquet")
    files, values = [tmp_path / "rows.parquet"], {"rows": 40, "source": "there"}
    own = Target("kind", "multiclass", names)
    assert check_model(named, files, own, **values)[1] == 40
    with pytest.raises(BadInput, match=r"calls a class 'shed' that the examples call 'house'; prepare"):
        check_model(named, files, Target("kind", "multiclass", ("flat", "house", "shed")), **values)
    with pytest.raises(BadInput, match=r"is -1 to 2, outside \[0, 1\] in 40 of 40 rows, which are not prob"):
        check_model(outside, files, own, **values)


MIXING: dict[str, Callable[[Any], Any]] = {
    "mean of the batch": lambda x: x - tf.reduce_mean(x),
    "largest of the batch": lambda x: x / tf.reduce_max(x),
    "softmax of the batch": lambda x: 9 * tf.nn.softmax(x),
    "sum of the rows before": tf.cumsum,
    "the row before": lambda x: tf.roll(x, 1, 0),
    "place in the batch": lambda x: x + tf.cast(tf.range(tf.shape(x)[0]), tf.float32),
    "size of the batch": lambda x: x + 1 / tf.cast(tf.shape(x)[0], tf.float32),
    "order in the batch": lambda x: tf.sort(x, direction="DESCENDING"),
    "noise": lambda x: x + tf.random.normal(tf.shape(x)),
    "dropout": lambda x: tf.nn.dropout(x, 0.5),
    "fixed batch": lambda x: tf.reshape(x, [15]),
}
GRAPHS = {
    "mean of the batch": ("ReduceMean", {"keepdims": 1}, "Sub"),
    "largest of the batch": ("ReduceMax", {"keepdims": 1}, "Div"),
    "softmax of the batch": ("Softmax", {"axis": 0}, "Add"),
    "noise": ("RandomNormalLike", {}, "Add"),
    "dice": ("RandomUniformLike", {}, "Mul"),
}


@pytest.mark.parametrize(("form", "kind"), [*(("saved_model", k) for k in MIXING), *(("onnx", k) for k in GRAPHS)])
def test_model_that_mixes_rows_or_is_random_is_refused(
    brought: Callable[..., Artifact], tmp_path: Path, form: str, kind: str
) -> None:
    if form == "saved_model":
        serve = lambda values: {"probability": tf.sigmoid(MIXING[kind](values - 2.5))}  # noqa: E731
        write_function(tmp_path, serve, visits=tf.float32)
    else:
        (mixing, options, joining) = GRAPHS[kind]
        nodes = [
            helper.make_node(mixing, ["visits"], ["mixed"], **options),
            helper.make_node(joining, ["visits", "mixed"], ["joined"]),
            helper.make_node("Sigmoid", ["joined"], ["probability"]),
        ]
        shape = helper.make_tensor_value_info("visits", TensorProto.FLOAT, [None, 1])
        output = helper.make_tensor_value_info("probability", TensorProto.FLOAT, [None, 1])
        graph = helper.make_graph(nodes, "mixing", [shape], [output])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "model.onnx")
    with pytest.raises(BadInput, match=r"source .*: the model (answers row \d+ with|rejects row \d+)"):
        brought(tmp_path)


def test_model_of_another_problem_is_reported(brought: Callable[..., Artifact], tmp_path: Path) -> None:
    estimator = LinearRegression().fit(ROWS, LATE)
    export_model(estimator, tmp_path, framework="sklearn", target=Target("late", "regression"), sample=ROWS)
    with pytest.raises(BadInput, match=r"output 'prediction' is for regression problems; .* needs one for binary"):
        brought(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["model.pkl", "MLmodel"], r"holds model.pkl, a pickle, which runs whatever code.*export_model"),
        (["data/model.joblib"], r"holds model.joblib, a pickle"),
        (["notes.txt"], r"expected a saved_model.pb, a .onnx or a .skops file in it; there is notes.txt"),
        ([], "there is nothing"),
        (["a.onnx", "b.onnx"], r"holds several models: a.onnx, b.onnx; name the folder or the file of one"),
    ],
)
def test_folder_without_exactly_one_safe_model_is_refused(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(BadInput, match=message):
        find_model(tmp_path, "there")


@pytest.mark.parametrize("name", ["v1", "deep/v1", "MLmodel"])
def test_links_outside_the_source_are_not_followed(tmp_path: Path, name: str) -> None:
    others, source = tmp_path / "others", tmp_path / "source"
    others.mkdir()
    (others / "model.onnx").write_bytes(b"x")
    (others / "MLmodel").write_text("flavors: {}")
    (source / name).parent.mkdir(parents=True)
    (source / name).symlink_to(others / name if name == "MLmodel" else others)
    with pytest.raises(BadInput, match=rf"{name} is a link that leads out of it; replace it with a copy"):
        find_model(source, "there")
    (source / name).unlink()
    shutil.copytree(others, source / "own")
    (source / "latest").symlink_to("own")
    assert find_model(source, "there").parent == source / "own"
    (tmp_path / "named").symlink_to(source)
    assert find_model(tmp_path / "named", "there").parent == tmp_path / "named" / "own"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("signature.json", content) for content in ("{", "[1]", "[" * 5000, '{"columns": 7}', '"text"')),
        *(("MLmodel", content) for content in ("a: [", "- 1", "flavors: 3", "[" * 5000)),
    ],
)
def test_damaged_signature_or_description_is_named(
    brought: Callable[..., Artifact], graph: Path, tmp_path: Path, name: str, content: str
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(graph, damaged)
    (damaged / name).write_text(content)
    with pytest.raises(BadInput, match=rf"damaged/{name} cannot be used"):
        brought(damaged, features=["age", "visits"] if name == "MLmodel" else None)


def test_links_and_damaged_files_are_refused(brought: Callable[..., Artifact], graph: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    shutil.copytree(graph, linked)
    (linked / "model.onnx.data").symlink_to("/etc/hostname")
    for source in (linked, f"file://{linked}"):
        with pytest.raises(BadInput, match=r"model.onnx.data is a link; expected files only"):
            brought(source, features=["age", "visits"])
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    with pytest.raises(BadInput, match=r"model.onnx does not load"):
        brought(tmp_path / "broken.onnx")
    with pytest.raises(BadInput, match="there is no such file or folder"):
        brought(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="expected an absolute path"):
        brought(Path("relative"))


def test_folder_markers_are_not_fetched(marked: Any, tmp_path: Path) -> None:
    address, options = marked.url, marked.options
    context: Any = SimpleNamespace(store=ArtifactStore(address, storage_options=options))
    folder = fetch_source(f"{address}/raw", context, tmp_path / "copy")
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == ["a/x.csv", "b/c/y.csv", "z.csv"]


@pytest.mark.slow
def test_logged_model_is_imported_by_run(make_context: Any, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    tracking_uri = f"sqlite:///{tmp_path}/mlflow.db"
    (tmp_path / "model.onnx").write_bytes(b"a graph")
    client = MlflowClient(tracking_uri)
    run_id = client.create_run(client.create_experiment("tests", (tmp_path / "logged").as_uri())).info.run_id
    client.log_artifact(run_id, str(tmp_path / "model.onnx"), "model")
    context = make_context(services={"tracking_uri": tracking_uri})
    source = fetch_source(f"runs:/{run_id}/model", context, tmp_path / "fetched")
    assert find_model(source, "there").read_bytes() == b"a graph"
    with pytest.raises(HopsError, match="none-such"):
        fetch_source("models:/none-such/3", context, tmp_path / "missing")
