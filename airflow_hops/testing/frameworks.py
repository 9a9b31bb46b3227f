"""Contract tests of frameworks (entry points ``airflow_hops.frameworks``)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from airflow_hops.core.artifacts.target import REGRESSION, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.models.export import export_model
from airflow_hops.ml.models.frameworks import framework_of, frameworks
from airflow_hops.ml.models.samples import Sample
from airflow_hops.ml.models.trained_models import answers_of
from airflow_hops.serving.models.formats import ModelOptions, open_model
from airflow_hops.serving.models.local import LocalServable


@dataclass(frozen=True)
class TrainedCase:
    """A model to test with.

    Attributes:
        model: A trained model of the framework.
        rows: At least four rows that it was not trained on: a data frame, or a matrix ``[rows, width]``.
        order: Names of a matrix's columns.
    """

    model: Any
    rows: Any
    target: Target
    order: tuple[str, ...] | None = None


class FrameworkContract:
    """Tests that every framework passes; a subclass names the framework and trains a model."""

    framework: ClassVar[str]

    @abstractmethod
    def train(self) -> TrainedCase:
        """Returns a trained model with rows."""

    @pytest.fixture
    def case(self) -> TrainedCase:
        return self.train()

    def test_is_registered(self) -> None:
        assert self.framework in frameworks()

    def test_owns_its_models_alone(self, case: TrainedCase) -> None:
        assert framework_of(case.model) == self.framework
        for other in (None, 1.5, "model", [1], {}, np.zeros(3), object()):
            assert not frameworks()[self.framework].owns(other)

    def test_predicts_each_row_by_itself(self, case: TrainedCase) -> None:
        sample = Sample.of(case.rows, case.order)
        together = answers_of(case.model, sample, self.framework, case.target)
        alone = answers_of(case.model, sample.between(0, 1), self.framework, case.target)
        for name, answers in together.items():
            assert len(answers) == len(case.rows)
            assert alone[name] == pytest.approx(answers[:1], rel=1e-5, abs=1e-6)

    def test_refuses_another_problem(self, case: TrainedCase) -> None:
        classes = tuple(f"class {number}" for number in range(7))
        other = Target("other", "multiclass", classes) if case.target.problem == REGRESSION else Target("o", REGRESSION)
        with pytest.raises(BadInput):
            answers_of(case.model, Sample.of(case.rows, case.order), self.framework, other)

    def test_exported_model_answers_alike(self, case: TrainedCase, tmp_path: Path) -> None:
        exported = export_model(
            case.model, tmp_path, framework=self.framework, target=case.target, sample=case.rows, order=case.order
        )
        known = frameworks()[self.framework]
        assert (exported.format, exported.framework) == (known.formats(case.model)[0], self.framework)
        assert set(exported.versions) & set(known.distributions)
        served = open_model("model", 1, tmp_path / exported.format, ModelOptions())
        assert isinstance(served, LocalServable)
        served.close()
