"""The operator of the images stage."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.images import ImageSource, PackOperator, PrepareImagesOperator


def test_operator_passes_arguments_and_detects_changed_files(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "one.png").write_bytes(b"1")
    operator = PrepareImagesOperator(
        task_id="images", sources={"train": str(tmp_path)}, height=8, width=9, channels=1, mean=(0.5,)
    )
    values = operator.step_params({})  # type: ignore[typeddict-item]
    assert (values["height"], values["width"], values["channels"], values["mean"], values["scale"]) == (
        8,
        9,
        1,
        [0.5],
        None,
    )
    assert values["sources"]["train"]["uri"] == str(tmp_path)
    hook: Any = SimpleNamespace()
    parts = operator.step_cache_key_parts(hook)
    (tmp_path / "cat" / "two.png").write_bytes(b"2")
    assert operator.step_cache_key_parts(hook) != parts
    with pytest.raises(BadInput, match="sources has no 'train'; it has nothing"):
        PrepareImagesOperator(task_id="none", sources={}, height=8, width=8, channels=1)
    with pytest.raises(BadInput, match="max_rejected is 10, expected a share from 0 to 1"):
        PrepareImagesOperator(task_id="all", sources={"train": "a"}, height=8, width=8, channels=1, max_rejected=10)
    with pytest.raises(BadInput, match=r"sources\['train'\] has no field 'image_colum'"):
        ImageSource.from_value("train", {"uri": "/images", "image_colum": "x"})


def test_packed_files_are_an_input(tmp_path: Path) -> None:
    packed = {"uri": "s3://store/packed", "kind": "packed_files", "fingerprint": "1"}
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "one.png").write_bytes(b"1")
    with DAG("packed", schedule=None):
        pack = PackOperator(task_id="pack", source=str(tmp_path))
        operator = PrepareImagesOperator(
            task_id="images", sources={"train": pack.output, "test": str(tmp_path)}, height=8, width=9, channels=1
        )
    assert operator.upstream_task_ids == {"pack"}
    operator.sources["train"]["uri"] = packed  # as rendered
    assert operator.step_inputs() == {"packed_train": packed}
    assert operator.step_params({})["sources"]["train"]["uri"] == "s3://store/packed"  # type: ignore[typeddict-item]
    hook: Any = SimpleNamespace()
    parts = operator.step_cache_key_parts(hook), pack.step_cache_key_parts(hook)
    (tmp_path / "cat" / "two.png").write_bytes(b"2")
    assert all(
        old != new
        for old, new in zip(parts, (operator.step_cache_key_parts(hook), pack.step_cache_key_parts(hook)), strict=True)
    )
    with pytest.raises(BadInput, match="shard_mb is 0, expected a whole number"):
        PackOperator(task_id="zero", source=str(tmp_path), shard_mb=0)
    with pytest.raises(BadInput, match=r"sources\['source'\] has no field 'format'"):
        PackOperator(task_id="format", source={"uri": str(tmp_path), "format": "csv"})
