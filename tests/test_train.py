"""The train stage: real ranks from transformed examples to a model artifact, and every way in which it may fail."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from airflow_hops.artifacts import Artifact, RowCounts
from airflow_hops.hooks.runtime import RuntimeHook, StepFailed

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)
ENTRY = "airflow_hops.runtime.train:run"


@pytest.fixture(scope="module")
def run(shared_run_step: Any, warm_launcher: Any) -> Any:
    """Runs steps of the module's own code."""

    def run_step(entry: str, **kwargs: Any) -> Any:
        return shared_run_step(entry, code_paths=CHECKS, launcher=warm_launcher, **kwargs)

    return run_step


@pytest.fixture(scope="module")
def examples(run: Any) -> Artifact:
    found: Artifact = run(
        "transformed_examples:write",
        params={"rows": {"train": [700, 3, 298], "eval": [201]}},
        kind="transformed_examples",
        inputs={"statistics": _reference("statistics"), "schema": _reference("schema")},
    )
    return found


@pytest.fixture(scope="module")
def train(run: Any, shared_run_step: Any, examples: Artifact) -> Any:
    """Trains with a function of ``training_functions``; checks that a failure leaves no artifact."""

    def train(
        function: str = "train", *, on: Artifact = examples, run_id: str | None = None, **params: Any
    ) -> Artifact:
        settings = {name: params.pop(name) for name in ("np", "seed", "stall_timeout_s", "timeline") if name in params}
        try:
            artifact: Artifact = run(
                ENTRY,
                params={"train": f"training_functions:{function}", "params": params, **settings},
                inputs={"examples": on},
                kind="model",
                run_id=run_id,
            )
            return artifact
        except StepFailed:
            assert not shared_run_step.store.exists(shared_run_step.last_uri)
            raise

    return train


@pytest.fixture(scope="module")
def model(train: Any, shared_run_step: Any) -> Any:
    artifact = train(run_id="uninterrupted", epochs=4)
    return artifact, shared_run_step.store.local(artifact), list(shared_run_step.lines)


def test_two_ranks_make_a_model_artifact_with_lineage(model: Any, examples: Artifact) -> None:
    artifact, folder, _ = model
    assert artifact.rows == {"train": RowCounts(1001, 1001), "eval": RowCounts(201, 201)}
    measured = {"train_loss", "train_auc", "eval_loss", "eval_auc", "examples_per_second", "scaling_efficiency"}
    assert measured < set(artifact.metrics)
    assert 0 < artifact.metrics["scaling_efficiency"] < 1
    assert artifact.metrics["eval_auc"] > 0.7
    assert {name: artifact.properties[name] for name in ("features", "label", "time", "signature")} == {
        "features": ["a", "b", "kind"],
        "label": "late",
        "time": "when",
        "signature": "serving_default",
    }
    assert artifact.properties["statistics"] == "file:///store/statistics"
    assert artifact.properties["schema"] == "file:///store/schema"
    assert artifact.properties["window"] == examples.properties["window"]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "step-00000022",
        "step-00000033",
        "step-00000044",
    ]
    assert {path.name for path in (folder / "logs").iterdir()} == {"rank-0.log", "rank-1.log"}


def test_training_json_tells_what_was_done(model: Any) -> None:
    summary = json.loads((model[1] / "training.json").read_text())
    assert (summary["ranks"], summary["seed"], summary["params"]) == (2, 0, {"epochs": 4})
    assert [set(epoch) for epoch in summary["epochs"]] == [{"loss", "auc", "val_loss", "val_auc", "seconds"}] * 4
    assert len(set(summary["guard"]["checksums"])) == 4
    assert summary["guard"]["rows"] == [1001] * 4
    assert summary["guard"]["checks"] >= 4 * 6
    assert summary["synchronized"] is True and model[0].properties["synchronized"] is True
    assert 0 < summary["scaling_efficiency"] < 1
    assert summary["rows_by_rank"] == [{"train": 500, "eval": 100}, {"train": 501, "eval": 101}]
    assert summary["versions"]["horovod"] == "0.28.1"


def test_progress_and_metrics_stream_to_the_task_log(model: Any) -> None:
    epochs = [line for line in model[2] if line.progress is not None]
    assert [line.progress for line in epochs] == [0.25, 0.5, 0.75, 1.0]
    assert epochs[0].text == "epoch 1 of 4"
    assert {"loss", "auc", "val_loss", "val_auc", "examples_per_second"} == set(epochs[0].metrics)
    assert "step 7 gradient_norm=0.25" in [line.text for line in model[2]]


def test_a_timeline_is_written_on_request(train: Any, shared_run_step: Any) -> None:
    folder = shared_run_step.store.local(train(epochs=1, timeline=True))
    events = (folder / "timeline.json").read_text()
    assert "hops_gradients_0" in events and "ALLREDUCE" in events


def test_nothing_that_autograph_writes_stays_in_the_temporary_folder(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    train(epochs=1)
    assert (tmp_path / "__pycache__").is_dir(), "AutoGraph wrote elsewhere"
    assert list(tmp_path.rglob("__autograph*")) == []


def test_the_model_serves_raw_features_and_events_are_in_its_folder(model: Any, run: Any) -> None:
    found = run("model_checks:look_at", inputs={"model": model[0]})
    low, middle, high = found["probability"]
    assert low < middle < high
    summary = json.loads((model[1] / "training.json").read_text())
    expected = [[epoch, pytest.approx(metrics["val_auc"])] for epoch, metrics in enumerate(summary["epochs"])]
    assert found["events"]["validation/auc"] == expected
    assert found["events"]["train/gradient_norm"] == [[7, 0.25]]
    assert [step for step, _ in found["events"]["train/loss"]] == [0, 1, 2, 3]


def test_a_retry_resumes_from_the_checkpoint_of_the_same_params_and_ends_with_the_same_weights(
    train: Any, model: Any, run: Any, shared_run_step: Any, tmp_path: Path
) -> None:
    given = {"epochs": 4, "accident_after": 3, "marker": str(tmp_path / "marker"), "run_id": "interrupted"}
    began = time.monotonic()
    with pytest.raises(StepFailed) as failure:
        train(**given)
    assert time.monotonic() - began < 60
    assert "rank 1 of 2 on" in str(failure.value)
    assert "was ended by SIGKILL" in str(failure.value)
    assert "rank 1 is about to have an accident" in str(failure.value)
    assert re.search(r"The checkpoint after epoch (2 \(step 22|3 \(step 33)\) is kept in", str(failure.value))
    assert failure.value.retryable
    alone = train(epochs=1, run_id="interrupted", np=1, seed=4)
    assert not any("resuming" in line.text for line in shared_run_step.lines), "the checkpoint is of other params"
    summary = json.loads((shared_run_step.store.local(alone) / "training.json").read_text())
    assert (summary["ranks"], summary["seed"]) == (1, 4)
    assert summary["rows_by_rank"] == [{"train": 1001, "eval": 201}]
    artifact = train(**given)
    lines = [line.text for line in shared_run_step.lines]
    assert any(line.startswith("resuming after epoch") for line in lines)
    assert "epoch 1 of 4" not in lines
    summary = json.loads((shared_run_step.store.local(artifact) / "training.json").read_text())
    uninterrupted = json.loads((model[1] / "training.json").read_text())
    assert summary["resumed_after_epoch"] in (2, 3)
    assert len(summary["epochs"]) == 4
    assert summary["checksum"] == uninterrupted["checksum"]
    events = run("model_checks:look_at", inputs={"model": artifact})["events"]
    assert [step for step, _ in events["train/loss"]] == [0, 1, 2, 3], "the earlier try's epochs are there, too"
    assert not list(Path(shared_run_step.store.root[7:]).glob("_state/checkpoints/tests/interrupted/*/*"))


def test_ranks_that_are_faster_than_the_store_go_on_and_are_not_taken_for_stalled(
    run: Any, examples: Artifact, shared_run_step: Any
) -> None:
    artifact = run(
        "training_functions:train_with_a_slow_store",
        params={"train": "training_functions:train", "params": {"epochs": 8}, "np": 1, "stall_timeout_s": 4},
        inputs={"examples": examples},
        kind="model",
    )
    summary = json.loads((shared_run_step.store.local(artifact) / "training.json").read_text())
    assert len(summary["epochs"]) == 8


def test_checkpoints_outlive_a_try_on_an_object_store_too(run: Any) -> None:
    found = run("model_checks:keep_checkpoints_on_an_object_store")
    assert found["before"] is None
    assert found["fetched"] == [2, [{"loss": 1.0}, {"loss": 0.5}]]
    assert found["damaged"] == [1, [{"loss": 1.0}]]
    assert "variable 'kernel' has shape (2, 1) there and (3, 1) in the model" in found["other_architecture"]
    assert "a checkpoint of format 1, written by airflow-hops an earlier version" in found["other_version"]
    assert found["after"] is None


@pytest.mark.parametrize(
    ("function", "given", "expected", "retryable"),
    [
        ("train_without_wrapper", {}, "the ranks' weights differ after step 1 of epoch 1", False),
        ("train", {"poison_after": 2, "run_id": "poisoned"}, "the loss is nan at step 1 of epoch 3", False),
        (
            "train",
            {"poison_after": 2, "run_id": "poisoned"},
            "The checkpoint after epoch 2 (step 22) is kept in",
            False,
        ),
        ("return_nothing", {}, "returned builtins.NoneType, expected a keras.Model", False),
        ("fail", {}, "KeyError: 'learning_rate' (rank 1 of 2 on", True),
        ("exhaust_memory", {}, "MemoryError: Unable to allocate", True),
        ("read_another_split", {}, "there is no split 'test' among the transformed examples", False),
        ("no_such_function", {}, "has no function 'no_such_function'", False),
        ("train", {"np": 0}, "np is 0, expected a number of ranks, 1 or more", False),
        ("hang", {"stall_timeout_s": 4}, "in waiting_for_a_lock_that_nobody_frees", True),
    ],
)
def test_what_goes_wrong_in_a_rank_is_said_and_leaves_no_artifact(
    train: Any, function: str, given: dict[str, Any], expected: str, retryable: bool
) -> None:
    with pytest.raises(StepFailed) as failure:
        train(function, **given)
    assert expected in str(failure.value)
    assert failure.value.retryable == retryable


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("corrupt", "part-00001.parquet: not a readable Parquet file"),
        ("column", "part-00001.parquet: there is no column 'numeric'; it has kind_id, late"),
        ("few", "split 'train' holds 1 rows, fewer than the 2 ranks"),
        ("features", "features.json: there is no such file"),
        ("lost", "split 'train' holds 998 rows, but its manifest says 1001"),
    ],
)
def test_examples_that_cannot_be_used_are_named(
    train: Any, run: Any, shared_run_step: Any, examples: Artifact, damage: str, expected: str
) -> None:
    import pyarrow.parquet as pq

    folder = shared_run_step.store.local(examples)
    target = folder.parent.parent / f"damaged-{damage}" / folder.name
    shutil.copytree(folder, target)
    files = sorted((target / "train").iterdir())
    if damage == "corrupt":
        files[1].write_bytes(files[1].read_bytes()[:-20])
    elif damage == "column":
        pq.write_table(pq.read_table(files[1]).drop(["numeric"]), files[1])
    elif damage == "few":
        files[0].unlink()
        files[2].unlink()
        pq.write_table(pq.read_table(files[1]).slice(0, 1), files[1])
    elif damage == "features":
        (target / "features.json").unlink()
    else:
        files[1].unlink()
    damaged = Artifact(target.as_uri(), examples.kind, examples.fingerprint, properties=examples.properties)
    with pytest.raises(StepFailed) as failure:
        train(on=damaged, epochs=1)
    assert expected in str(failure.value)
    assert not failure.value.retryable


def test_a_rank_that_the_kernel_kills_for_want_of_memory_is_named(train: Any, small_memory: Path) -> None:
    with pytest.raises(StepFailed, match=r"rank 1 of 2 on .*SIGKILL \(the kernel's out-of-memory killer") as failure:
        train("outgrow", group=str(small_memory))
    assert failure.value.retryable


@pytest.mark.parametrize("left_kib", [8, 72])
def test_a_store_without_space_is_said_and_leaves_no_artifact(
    small_folder: Path, runtime: Path, warm_launcher: Any, left_kib: int
) -> None:
    from conftest import StepRunner

    run = StepRunner(str(small_folder), runtime)
    inputs = {"statistics": _reference("statistics"), "schema": _reference("schema")}
    rows = {"train": [100], "eval": [50]}
    given = {"code_paths": CHECKS, "launcher": warm_launcher}
    examples = run(
        "transformed_examples:write", params={"rows": rows}, kind="transformed_examples", inputs=inputs, **given
    )
    free_bytes = shutil.disk_usage(small_folder).free
    (small_folder / "filler").write_bytes(bytes(free_bytes - left_kib * 1024))
    params = {"train": "training_functions:train", "params": {"epochs": 2}}
    with pytest.raises(StepFailed, match=r"[Nn]o space left on") as failure:
        run(ENTRY, params=params, inputs={"examples": examples}, kind="model", **given)
    assert failure.value.retryable
    assert not run.store.exists(run.last_uri)


def test_killing_the_step_ends_all_ranks_within_5_seconds(
    shared_run_step: Any, warm_launcher: Any, examples: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks: list[RuntimeHook] = []
    launch = RuntimeHook._launch
    monkeypatch.setattr(RuntimeHook, "_launch", lambda hook, *a: hooks.append(hook) or launch(hook, *a))
    failures: list[BaseException] = []

    def train() -> None:
        params = {"train": "training_functions:train_slowly", "params": {}}
        inputs = {"examples": examples}
        try:
            shared_run_step(
                ENTRY, params=params, inputs=inputs, kind="model", code_paths=CHECKS, launcher=warm_launcher
            )
        except StepFailed as failure:
            failures.append(failure)

    thread = threading.Thread(target=train)
    thread.start()
    deadline = time.monotonic() + 30
    step = None
    while time.monotonic() < deadline and not any("pids" in line.text for line in shared_run_step.lines):
        time.sleep(0.1)
    assert hooks[0]._process is not None
    step = psutil.Process(hooks[0]._process.pid)
    processes = [step, *step.children(recursive=True)]
    assert len(processes) == 3
    began = time.monotonic()
    hooks[0].kill()
    assert time.monotonic() - began < 5
    assert not [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    thread.join(5)
    assert "ended by SIG" in str(failures[0])
    assert not shared_run_step.store.exists(shared_run_step.last_uri)


def test_ranks_die_with_a_step_that_is_killed_outright(
    shared_run_step: Any, warm_launcher: Any, examples: Artifact
) -> None:
    def train() -> None:
        with pytest.raises(StepFailed):
            shared_run_step(
                ENTRY,
                params={"train": "training_functions:train_slowly", "params": {}},
                inputs={"examples": examples},
                kind="model",
                code_paths=CHECKS,
                launcher=warm_launcher,
            )

    thread = threading.Thread(target=train)
    thread.start()
    deadline = time.monotonic() + 30
    pids: list[str] = []
    while time.monotonic() < deadline and not pids:
        time.sleep(0.1)
        pids = [line.text.split()[1] for line in shared_run_step.lines if line.text.startswith("pids")]
    rank = psutil.Process(int(pids[0]))
    step = rank.parent()
    assert step is not None
    ranks = step.children()
    assert len(ranks) == 2
    step.kill()
    _, alive = psutil.wait_procs(ranks, timeout=3)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    thread.join(10)


def test_hyperparameters_are_airflow_params_that_a_runs_conf_overrides(tmp_path: Path) -> None:
    from airflow.sdk import DAG

    from airflow_hops.operators.train import HorovodTrainOperator

    with DAG("training", schedule=None, params={"window": "2013-01"}):
        operator = HorovodTrainOperator(
            task_id="train", train="flights.model:train", examples="{{ x }}", params={"lr": 0.001, "epochs": 2}, np=3
        )
    assert operator.params.dump() == {"window": "2013-01", "lr": 0.001, "epochs": 2}
    context: Any = {"params": {"lr": 0.5, "epochs": 2, "window": "2013-01"}}
    given = {"train": "flights.model:train", "params": {"lr": 0.5, "epochs": 2}, "np": 3, "seed": 0}
    params = operator.step_params(context)
    assert {name: params[name] for name in given} == given
    operator.examples = _reference("transformed_examples").to_dict()
    ti = SimpleNamespace(dag_id="training", run_id="r", task_id="train", map_index=None, try_number=2)
    spec = operator.build_spec(
        RuntimeHook(), {**context, "ti": ti, "dag": SimpleNamespace(fileloc=str(tmp_path / "d.py"))}
    )
    assert spec.entry == ENTRY
    assert spec.output is not None and spec.output.kind == "model"
    assert [artifact.kind for artifact in spec.inputs["examples"]] == ["transformed_examples"]


def _reference(kind: str) -> Artifact:
    return Artifact(f"file:///store/{kind}", kind, "0" * 64)
