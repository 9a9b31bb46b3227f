"""Contract tests of model formats (entry points ``airflow_hops.model_formats``)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from airflow_hops.core.extensions import MODEL_FORMATS, load_all
from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import Method, PredictRequest, PredictResponse
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.formats import ModelFormat, ModelOptions, format_of, open_model
from airflow_hops.serving.models.servable import Call, Servable


class ModelFormatContract:
    """Tests that every format passes; a subclass names the format, writes a model and has rows for it."""

    format: ClassVar[str]
    rows: ClassVar[Mapping[str, np.ndarray]]
    """Inputs of the default signature by name: two rows or more, of the model's types."""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Writes a model's files to an empty folder."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        self.write(tmp_path)
        return tmp_path

    @pytest.fixture
    def servable(self, folder: Path) -> Iterator[Servable]:
        servable = open_model("model", 1, folder, ModelOptions())
        yield servable
        servable.close()

    def test_recognises_a_folder_by_its_files(self, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        own = load_all(MODEL_FORMATS, ModelFormat)[self.format]
        assert format_of(folder) is own
        assert format_of(tmp_path_factory.mktemp("empty")) is None

    def test_answers_each_row_by_itself(self, servable: Servable) -> None:
        together = _predict(servable, self.rows)
        alone = _predict(servable, {name: values[:1] for name, values in self.rows.items()})
        assert together and together.keys() == alone.keys()
        for name, values in together.items():
            assert len(values) == len(next(iter(self.rows.values())))
            if values.dtype.kind == "f":
                assert alone[name] == pytest.approx(values[:1], rel=1e-5, abs=1e-6)
            else:
                assert (alone[name] == values[:1]).all()

    def test_refuses_unknown_names(self, servable: Servable) -> None:
        with pytest.raises(ServingError):
            _predict(servable, {**self.rows, "no such input": np.zeros(1)})
        with pytest.raises(ServingError):
            _predict(servable, self.rows, signature="no such signature")

    def test_refuses_a_damaged_file(self, folder: Path) -> None:
        for name in load_all(MODEL_FORMATS, ModelFormat)[self.format].files:
            if (folder / name).exists():
                (folder / name).write_bytes(b"damaged")
        with pytest.raises(ServingError):
            open_model("model", 1, folder, ModelOptions())

    def test_takes_no_request_once_closed(self, folder: Path) -> None:
        servable = open_model("model", 1, folder, ModelOptions())
        servable.close()
        assert not servable.acquire()


def _predict(servable: Servable, rows: Mapping[str, np.ndarray], signature: str = "") -> dict[str, np.ndarray]:
    request = PredictRequest()
    request.model_spec.signature_name = signature
    for name, values in rows.items():
        tensors.fill_proto(request.inputs[name], values)
    response = PredictResponse.FromString(servable.answer(Call(Method.PREDICT, request.SerializeToString())).message)
    return {name: tensors.from_proto(proto) for name, proto in response.outputs.items()}
