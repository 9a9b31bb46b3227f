"""The champion that a run continues from, whatever is promoted meanwhile, and what the operators make of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.sdk import DAG, task
from waiting import wait_for
from world import context_of, write_artifact

from airflow_hops import BadInput, HorovodTrainOperator, TrainOperator, TransformOperator
from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import StepFailed
from airflow_hops.core.lineage import links_of
from airflow_hops.core.models.continued_models import champion_of_run
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, write_record
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.runner.new_rows import training_snapshot
from airflow_hops.runner.runtime import RuntimeHook

STEPS = str(Path(__file__).parent / "steps")
EXAMPLES = Artifact("file:///store/examples", "transformed_examples", "0" * 64)


def promote(store: ArtifactStore, model: Artifact, version: int) -> None:
    write_record(store, "late", ModelRecord(champion=ServedVersion.of(model, version, "", 100)))


def make(store: ArtifactStore, name: str, kind: str = "model", **inputs: Artifact) -> Artifact:
    return write_artifact(store, kind, name, Producer("late", name, kind), inputs=inputs)


def spec_of(store: ArtifactStore, operator: Any, run_id: str = "run", try_number: int = 1) -> StepSpec:
    """Returns the complete spec of a try, as the operator runs it."""
    hook = RuntimeHook()
    hook.__dict__["settings"] = replace(hook.settings, store=store.root)
    context = context_of("train", "late", run_id, try_number=try_number, file=f"{STEPS}/dag.py")
    return hook.complete(operator.build_spec(hook, {**context, "params": operator.params.dump()}))


def test_run_has_the_champion_of_its_beginning(store: ArtifactStore) -> None:
    one, two = make(store, "one"), make(store, "two")
    first, second = Producer("late", "first", "train"), Producer("late", "second", "train")
    assert champion_of_run(store, first, "late") is None
    promote(store, one, 1)
    assert champion_of_run(store, second, "late") == (one, 1)
    promote(store, two, 2)
    assert champion_of_run(store, first, "late") is None
    assert champion_of_run(store, replace(second, task_id="transform", try_number=2), "late") == (one, 1)
    assert champion_of_run(store, Producer("late", "third", "train"), "late") == (two, 2)


def test_cache_key_and_inputs_have_the_champion(store: ArtifactStore) -> None:
    with DAG("late", schedule=None):

        @task.train(continue_from="late")
        def train(context: Any, champion: Any) -> Any:
            return champion

        named = train(EXAMPLES.to_dict()).operator
    operators: list[Any] = [
        operator(
            task_id=operator.__name__, train="continue_functions:fit", examples=EXAMPLES.to_dict(), continue_from="late"
        )
        for operator in (TrainOperator, HorovodTrainOperator)
    ]
    one, two = make(store, "one"), make(store, "two")
    for operator in operators:
        run = f"{operator.task_id}-"
        promote(store, one, 1)
        first, same = spec_of(store, operator, f"{run}1"), spec_of(store, operator, f"{run}2")
        promote(store, two, 2)
        other, retry = spec_of(store, operator, f"{run}3"), spec_of(store, operator, f"{run}1", try_number=2)
        assert [each.fingerprint for each in first.inputs["champion"]] == [one.fingerprint]
        assert first.params["champion_version"] == 1 and other.params["champion_version"] == 2
        assert first.cache_key_parts == same.cache_key_parts == retry.cache_key_parts
        assert first.cache_key_parts != other.cache_key_parts
        write_record(store, "late", ModelRecord())
        none = spec_of(store, operator, f"{run}4")
        assert "champion" not in none.inputs and none.params["champion_version"] is None
    with pytest.raises(BadInput, match="the function has an argument 'champion'; rename it"):
        spec_of(store, named)


def test_transform_takes_the_constants_of_the_champions_transform(store: ArtifactStore) -> None:
    inputs = {kind: Artifact(f"file:///store/{kind}", kind, "0" * 64).to_dict() for kind in ("statistics", "schema")}
    raw = Artifact("file:///store/raw", "examples", "0" * 64).to_dict()
    transform = TransformOperator(preprocess="m:f", examples=raw, **inputs, continue_from="late")
    assert "constants" not in spec_of(store, transform, "first").inputs
    snapshot = make(store, "raw2", "snapshot")
    statistics = make(store, "s1", "statistics", tables=make(store, "raw1", "snapshot"))
    champions_examples = make(store, "t1", "transformed_examples", statistics=statistics)
    promote(store, make(store, "m1", examples=champions_examples), 1)
    assert spec_of(store, transform, "second").inputs["constants"] == (statistics,)
    new = make(store, "s2", "statistics", tables=snapshot)
    others = make(store, "t2", "transformed_examples", statistics=new, constants=statistics)
    model = make(store, "m2", examples=others, champion=make(store, "m1", examples=champions_examples))
    promote(store, model, 2)
    assert training_snapshot(store, model) == snapshot
    assert spec_of(store, transform, "third").inputs["constants"] == (statistics,)
    followed = {link.role: link.followed for link in links_of(store.manifest(model.uri))}
    assert followed == {"examples": True, "champion": False}
    promote(store, make(store, "m3"), 3)
    with pytest.raises(BadInput, match=r"the constants of its version 3 are unknown: .* trained without a transform"):
        spec_of(store, transform, "fourth")


@pytest.mark.runtime
def test_retry_after_a_kill_continues_from_the_same_champion(
    shared_run_step: Any, warm_launcher: Any, tmp_path: Path
) -> None:
    store = shared_run_step.store
    options: dict[str, Any] = {"code_paths": (STEPS,), "launcher": warm_launcher}
    rows = {"rows": {"train": [301], "eval": [101]}}
    examples = shared_run_step("transformed_examples:write", params=rows, kind="transformed_examples", **options)
    params = {"train": "continue_functions:learn_more", "np": 1, "strategy": "single", "continue_from": "late"}
    entry, marker = "airflow_hops.ml.training.stage:run", tmp_path / "waits"
    one = shared_run_step(entry, params=params, inputs={"examples": examples}, kind="model", **options)
    operator = TrainOperator(
        train=params["train"], examples=examples.to_dict(), params={"waits": str(marker)}, continue_from="late"
    )

    def train(try_number: int) -> Any:
        spec, ids = spec_of(store, operator, "killed", try_number), {"dag_id": "late", "run_id": "killed"}
        return shared_run_step(
            entry, params=spec.params, inputs=spec.inputs, kind="model", task_id="train", **ids, **options
        )

    promote(store, one, 1)
    with ThreadPoolExecutor(1) as pool:
        first_try = pool.submit(train, 1)
        wait_for(lambda: first_try.done() or (marker.exists() and marker.read_text()), "the training waits", 300)
        if not first_try.done():
            saved = Path(store.internal("_state", "checkpoints", "late", "killed").removeprefix("file://"))
            wait_for(lambda: [*saved.rglob("checkpoint.json")], "the checkpoint is in the store", 60)
            psutil.Process(int(marker.read_text())).parent().kill()  # type: ignore[union-attr]
        with pytest.raises(StepFailed, match="without a result"):
            first_try.result()
    promote(store, make(store, "two"), 2)
    model = train(2)
    assert "resumed: version 1 of model 'late', window ('2013-01-01T00:00:00+00:00', '2013-04-01T00:00:00+00:00')" in [
        line.text for line in shared_run_step.lines
    ]
    of_first = {"model_name": "late", "version": 1, "fingerprint": one.fingerprint}
    assert ModelProperties.of(model).continued_from == of_first
    assert [each.fingerprint for each in store.manifest(model.uri).inputs["champion"]] == [one.fingerprint]
