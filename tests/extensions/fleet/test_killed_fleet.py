"""A served fleet whose steps are killed: each answer is that of one whole fleet, and a decision is made once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from served_models import Pipeline
from waiting import wait_for

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from tests.extensions.fleet.hostile_keys import hostile_keys

pytestmark = pytest.mark.runtime

Slopes = Mapping[str, float]
"""Factors of the price, by segment."""

KEYS = hostile_keys(60)
FIRST: Slopes = {key: 1.0 + number for number, key in enumerate(KEYS)}
CHANGED = KEYS[:3]
SECOND: Slopes = {**FIRST, **{key: -100.0 - number for number, key in enumerate(CHANGED)}}
THIRD: Slopes = {**SECOND, KEYS[0]: FIRST[KEYS[0]]}


@dataclass
class ServedFleet:
    pipeline: Pipeline

    def train(self, slopes: Slopes, run_id: str, champion: Artifact | None = None) -> Artifact:
        """A fleet of segments whose label is the price times their slope."""
        price = np.linspace(5.0, 15.0, 50)
        table = pa.concat_tables(
            pa.table({"shop": [key] * len(price), "price": price, "label": slope * price})
            for key, slope in slopes.items()
        )
        store = self.pipeline.store
        with store.create(store.uri("tests", run_id, "prepare", "examples"), "examples", Producer()) as writer:
            (writer.path / "train").mkdir()
            pq.write_table(table, writer.path / "train" / "part-00000.parquet")
            properties = {"label": "label", "problem": "regression", "splits": ["train"]}
            examples = writer.commit(rows={"train": RowCounts(len(table), len(table))}, properties=properties)
        fleet: Artifact = self.pipeline.runner(
            "airflow_hops.extensions.fleet.ml.stage:run",
            params={"segment": "shop", "look_alikes": "keep"},
            inputs={"examples": examples, **({"champion": champion} if champion else {})},
            kind="model",
            task_id="train",
            run_id=run_id,
            launcher=self.pipeline.launcher,
        )
        return fleet

    def select(self, **params: Any) -> Artifact:
        selected: Artifact = self.pipeline.step(
            "airflow_hops.extensions.fleet.ml.selection:run",
            killed_before=params.pop("killed_before", ""),
            params={"model_name": self.pipeline.name, **params},
            kind="model",
            task_id="select",
            run_id="select",
        )
        return selected

    def slopes(self) -> list[float] | None:
        """The slopes that one request of all segments is answered with; None while the server has no version."""
        rows = [{"shop": key, "price": price} for price in (9.0, 11.0) for key in KEYS]
        status, answer = self.pipeline.server.call(f"/v1/models/{self.pipeline.name}:predict", {"instances": rows})
        if status != 200:
            assert status in (404, 503), answer
            return None
        low, high = np.array(answer["predictions"]).reshape(2, len(KEYS))
        slopes: list[float] = ((high - low) / 2).tolist()
        return slopes

    def serves(self, expected: Slopes) -> bool:
        slopes = self.slopes()
        return slopes is not None and slopes == pytest.approx([expected[key] for key in KEYS], rel=0.05, abs=0.05)

    def check_whole(self, allowed: Sequence[Slopes]) -> None:
        """Asks often enough that a server that polls answers before and after."""
        for _ in range(5):
            assert (slopes := self.slopes()) is None or any(
                slopes == pytest.approx([each[key] for key in KEYS], rel=0.05, abs=0.05) for each in allowed
            )
        assert slopes is not None or not allowed[1:], "the champion serves on"

    def killed(self, step: Callable[..., Any], points: Sequence[str], allowed: Sequence[Slopes], **params: Any) -> Any:
        """Has a step killed before each of the points; then it is done."""
        for point in points:
            self.pipeline.kill(step, before=point, **params)
            self.check_whole(allowed)
        return step(**params)


def test_killed_steps_neither_lose_a_segment_nor_serve_half_a_fleet(pipeline: Pipeline) -> None:
    fleet = ServedFleet(pipeline)
    points = ("data", "folder", "record", "labels", "traffic", "artifact")
    first = fleet.train(FIRST, "first")
    assert first.metrics["segments"] == len(KEYS) and first.metrics.get("pooled", 0) == 0
    deploy = lambda model, **params: pipeline.deploy(model, canary_percent=100, **params)  # noqa: E731
    fleet.killed(deploy, points, [FIRST], model=first)
    wait_for(lambda: fleet.serves(FIRST), "the first fleet")

    second = fleet.train(SECOND, "second", champion=first)
    assert second.metrics["trained"] == len(CHANGED)
    deployment = fleet.killed(deploy, points, [FIRST, SECOND], model=second)
    wait_for(lambda: fleet.serves(SECOND), "the second fleet")
    plan: dict[str, Any] = {"deployment": deployment, "steps": [100], "min_requests": 5, "keep_versions": 1}
    rollout = fleet.killed(pipeline.poll, ("record", "versions", "artifact"), [FIRST, SECOND], **plan)
    assert rollout.properties["decision"] == "promoted"
    assert fleet.serves(SECOND)

    record = pipeline.record()
    selected = fleet.killed(fleet.select, ("artifact",), [SECOND, SECOND], segments=KEYS[:1], version=1)
    assert pipeline.record() == record and selected.metrics["changed"] == 1
    fleet.killed(deploy, points, [SECOND, THIRD], model=selected)
    fleet.killed(
        lambda **params: pipeline.decide("promote", version=3, **params), ("record", "traffic"), [SECOND, THIRD]
    )
    wait_for(lambda: fleet.serves(THIRD), "the fleet with one segment rolled back")
    assert pipeline.events() == [
        ("deployed", 1), ("canary", 2), ("promoted", 2), ("canary", 3), ("promoted", 3),
    ]  # fmt: skip
    assert pipeline.aliases() == {"champion": 3}
