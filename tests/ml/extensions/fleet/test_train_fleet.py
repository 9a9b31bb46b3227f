"""Trainings of fleets: which model answers which segment, what is trained again, and what is refused."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import shops

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet.ml import stage
from airflow_hops.ml.evaluate import stage as evaluate
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.spark import pools

Train = Callable[..., Artifact]
SIZES = [(f"shop {number:02}", int(12 * 1.7 ** (number % 10))) for number in range(20)]


def losses_of(problem: str, answers: Any, rows: pa.Table) -> Any:
    labels = rows["label"].to_numpy()
    if problem == "regression":
        return np.square(answers - labels)
    if problem == "binary":
        return -np.log(np.clip(np.where(labels == 1, answers, 1 - answers), 1e-7, 1))
    return -np.log(np.clip(answers[np.arange(len(labels)), labels], 1e-7, 1))


@pytest.mark.parametrize(
    ("problem", "model", "output"),
    [
        ("regression", "linear", "prediction"),
        ("binary", "linear", "probability"),
        ("multiclass", "linear", "probabilities"),
        ("regression", "trees", "prediction"),
        ("binary", "trees", "probability"),
        ("multiclass", "trees", "probabilities"),
        ("binary", "segment_models:forest", "probability"),
        ("regression", "segment_models:dense", "prediction"),
    ],
)
def test_served_answers_have_the_recorded_losses(
    store: ArtifactStore, train: Train, opened: Any, problem: str, model: str, output: str
) -> None:
    sizes = SIZES if model == "linear" else SIZES[6:10]
    splits = shops.tables(sizes, problem=problem)
    fleet = train(splits, problem=problem, model=model)
    entries = opened(fleet).entries
    assert {entry["state"] for entry in entries.values()} > {"pooled"} or model != "linear"
    rows = splits["eval"]
    losses = losses_of(problem, shops.answers(store, fleet, rows, output), rows)
    for segment, entry in entries.items():
        own = losses[pc.equal(rows["shop"], segment).to_numpy()]
        assert entry["eval_loss"] == pytest.approx(own.mean(), rel=2e-3, abs=1e-4)
        assert entry["eval_rows"] == len(own)


def test_tenths_by_rows_are_reported(train: Train) -> None:
    """Reports; test_choice.py holds that each is as good as the pooled model, however much segments differ."""
    sizes = [(f"shop {number:03}", int(20 * 1.5 ** (number % 10))) for number in range(100)]
    fleet = train(shops.tables(sizes, own=1.0, held_rows=500))
    tenths = fleet.properties["fleet"]["deciles"]
    assert len(tenths) == 10 and sum(tenth["segments"] for tenth in tenths) == 100
    assert all(tenth["loss"] <= tenth["pooled_loss"] * 1.002 for tenth in tenths)
    assert fleet.metrics["eval_loss"] < 0.5 * fleet.metrics["eval_pooled_loss"]


def test_only_changed_segments_are_trained_again(train: Train, opened: Any) -> None:
    splits = shops.tables(SIZES)
    first = train(splits, groups=["region"])
    changed = {**splits, "train": pa.concat_tables([shops.rows_of("shop 07", 20, seed=5), splits["train"]])}
    second = train(changed, before=first, groups=["region"])
    assert (second.metrics["trained"], second.metrics["reused"]) == (1, 19)
    old, new = opened(first), opened(second)
    assert new.entries["shop 07"]["rows"] == old.entries["shop 07"]["rows"] + 20
    for segment in old.entries.keys() - {"shop 07"}:
        assert new.segment(segment)[1] == old.segment(segment)[1]
        assert new.statistics[segment] == old.statistics[segment]
        assert new.entries[segment]["trained_by"] == old.entries[segment]["trained_by"]


def test_segments_appear_and_vanish(train: Train, opened: Any) -> None:
    first = train(shops.tables(SIZES))
    others = [each for each in SIZES if each[0] != "shop 19"] + [("shop new", 300)]
    second = train(shops.tables(others), before=first)
    outcomes = second.properties["fleet"]
    assert (outcomes["appeared"], outcomes["vanished"], outcomes["trained"]) == (1, 1, 1)
    old, new = opened(first), opened(second)
    assert new.entries["shop 19"]["reason"] == f"no rows in this run; {old.entries['shop 19']['reason']}"
    assert new.segment("shop 19")[1] == old.segment("shop 19")[1]
    third = train(shops.tables(others, seed=3), before=second)
    assert third.properties["fleet"]["encoding"] == "made"
    assert (opened(third).entries["shop 19"]["state"], third.metrics["trained"]) == ("pooled", 20)


def test_segment_whose_function_fails_is_trained_again(train: Train, opened: Any) -> None:
    """Retries; test_segment_rules.py holds that it fails alone, and what is logged."""
    splits = shops.tables(SIZES[5:10])
    is_large = pc.equal(splits["train"]["shop"], "shop 08")
    labels = pc.if_else(is_large, pc.add(splits["train"]["label"], 100.0), splits["train"]["label"])
    splits["train"] = shops.replaced(splits["train"], "label", labels)
    fleet, options = None, {"model": "segment_models:ridge", "max_failed": 0.2}
    for trained in (5, 1):
        fleet = train(splits, before=fleet, **options)
        assert (fleet.metrics["trained"], fleet.metrics["failed"]) == (trained, 1)
        entry = opened(fleet).entries["shop 08"]
        assert entry["failed"] and entry["state"] == "pooled"
        assert "failed: ValueError: the labels are large" in entry["reason"]


def _with_keys(table: pa.Table, keys: list[Any], kind: Any = None) -> pa.Table:
    return shops.replaced(table, "shop", pa.array(keys, kind))


@pytest.mark.parametrize(
    ("keys", "options", "message"),
    [
        (["a", None], {}, "column 'shop' is null in 100 rows; .* leave such rows out"),
        (["A1", "a1 "], {}, r"keys that look alike in 1 groups: 'A1' and 'a1 '"),
        (["\u00c5", "A\u030a"], {}, r"look alike in 1 groups: 'A\\u030a' and '\\xc5'"),
        (["a", " "], {}, "column 'shop' is ' ' in some rows"),
        (["a", "b"], {"max_segments": 1}, "has 2 different values; expected keys of at most 1 segments"),
        (["a", "b"], {"segment": "label"}, "segment is 'label', which is the label"),
        (["a", "b"], {"segment": "store"}, "there is no column 'store' in the examples; they have shop, price"),
        (["a", "b"], {"columns": ["price", "sales"]}, "there is no column 'sales'"),
        (["a", "b"], {"groups": ["shop"]}, "segment is 'shop', which is among the groups"),
        (["a", "x" * 1025], {}, "x… in some rows, a key that has 1,025 bytes; at most 1,024"),
        (["a", "b"], {"columns": ["price", "label"]}, "columns has 'label', which is the label"),
    ],
)
def test_bad_keys_and_columns_are_refused(
    train: Train, keys: list[str | None], options: dict[str, Any], message: str
) -> None:
    rows = _with_keys(shops.rows_of("shop", 100), keys * 50, pa.string())
    with pytest.raises(BadInput, match=message):
        train({"train": rows, "eval": rows}, **options)


def test_rows_of_unknown_keys_are_not_evaluated(train: Train) -> None:
    rows = _with_keys(shops.rows_of("shop", 100), ["a", "new", "A "] + ["a"] * 97, pa.string())
    known = rows.filter(pc.not_equal(rows["shop"], "new"))
    fleet = train({"train": known, "eval": rows}, look_alikes="keep")
    assert fleet.rows["eval"].rows_rejected == 1 and fleet.rows["eval"].rows_out == 99
    assert fleet.properties["fleet"]["look_alikes"] == [["A ", "a"]]


def test_keys_are_never_paths(store: ArtifactStore, train: Train, opened: Any, tmp_path: Path) -> None:
    keys = ["../../escape", "/etc/passwd", "a\x00b", "con", ".", "🏪", "x" * 500]
    rows = pa.concat_tables([_with_keys(shops.rows_of(key, 300), [key] * 300) for key in keys])
    fleet = train({"train": rows, "eval": rows})
    assert sorted(opened(fleet).entries) == sorted(keys)
    assert not [path for path in tmp_path.rglob("*") if "escape" in path.name or "passwd" in path.name]
    assert np.isfinite(shops.answers(store, fleet, rows, "prediction")).all()


def test_integer_keys_and_missing_values(store: ArtifactStore, train: Train, opened: Any) -> None:
    parts = [_with_keys(shops.rows_of(f"shop {n}", 400), [n - 1] * 400, pa.int64()) for n in range(3)]
    rows = pa.concat_tables(parts)
    for name in ("price", "visits", "day"):
        holes = pa.array(np.arange(len(rows)) % 10 == 0)
        values = pc.if_else(holes, None, rows[name])
        rows = shops.replaced(rows, name, values)
    fleet = train({"train": rows, "eval": rows})
    assert sorted(opened(fleet).entries) == ["-1", "0", "1"]
    statistics = json.loads(opened(fleet).statistics["0"])["statistics"]
    assert {name: each["missing"] for name, each in statistics.items()} == {
        "price": 40,
        "visits": 40,
        "day": 40,
        "region": 0,
    }
    for name, each in statistics.items():
        own = [value for row, value in enumerate(parts[1][name].to_pylist()) if row % 10 or name == "region"]
        assert sum(each["counts"]) == len(own)
        if "edges" in each:
            assert (each["mean"], each["deviation"]) == pytest.approx((np.mean(own), np.std(own)), rel=1e-4)
            assert (each["least"], each["greatest"]) == pytest.approx((min(own), max(own)))
            assert each["edges"][4] == pytest.approx(np.quantile(own, 0.5, method="lower"))
    signature = json.loads((model_folder(store, fleet) / "signature.json").read_text())
    types = {column["name"]: column["type"] for column in signature["columns"]}
    assert types == {"shop": "int64", "price": "float", "visits": "float", "day": "string", "region": "string"}


def test_fleet_does_not_depend_on_cores(store: ArtifactStore, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = shops.write(store, shops.tables(SIZES, problem="binary"), problem="binary")
    names, written = ("fleet/packs/000.bin", "fleet/index.parquet", "statistics/000.json"), []
    for cores in (1, 2):
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--master local[{cores}] pyspark-shell")
        folder = store.local(train(examples, run_id="same"))
        written.append([(folder / name).read_bytes() for name in names])
    assert written[0] == written[1]


def test_executors_of_a_cluster_are_sent_their_rows(
    store: ArtifactStore, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = shops.write(store, shops.tables(SIZES))
    here = train(examples, run_id="same")

    @contextlib.contextmanager
    def cluster(context: Any, default_master: str) -> Iterator[pools.Pool]:
        def run(work: Any, parts: Any, report: Any) -> list[Any]:
            for path in context.scratch.rglob("*.arrow"):  # which executors do not see
                path.unlink()
            return pools.IN_PROCESS.run(pickle.loads(pickle.dumps(work)), pickle.loads(pickle.dumps(parts)), report)

        yield pools.Pool(run, reads_store=True, runs_here=False)

    monkeypatch.setattr(stage, "step_pool", cluster)
    there = train(examples, run_id="same")
    assert (there.metrics, there.properties) == (here.metrics, here.properties)
    assert there.fingerprint == here.fingerprint


def test_fleet_is_evaluated_and_predicts_like_any_model(
    store: ArtifactStore, train: Train, run_stage: Callable[..., Any]
) -> None:
    splits = shops.tables([(f"shop {number}", 300) for number in range(8)], problem="binary")
    examples = shops.write(store, splits, problem="binary")
    fleet = train(examples)
    evaluation = run_stage(
        evaluate.run,
        kind="evaluation",
        inputs={"model": fleet, "examples": examples},
        model_name="shops",
        slices=["shop"],
    )
    assert evaluation.properties["blessed"], evaluation.properties["reasons"]
    report = json.loads((store.local(evaluation) / "evaluation.json").read_text())
    assert report["splits"]["eval"]["candidate"]["log_loss"] == pytest.approx(fleet.metrics["eval_loss"], rel=1e-4)


@pytest.mark.parametrize("row", range(4))
def test_segment_of_equal_rows_is_trained(train: Train, row: int) -> None:
    splits = shops.tables([("a", 60)])
    equal = pa.concat_tables([splits["train"].slice(row, 1)] * 40).set_column(0, "shop", pa.array(["equal"] * 40))
    splits["train"] = pa.concat_tables([splits["train"], equal])
    assert train(splits, model="trees").metrics["failed"] == 0
