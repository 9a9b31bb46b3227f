"""Contract tests of capture sinks (entry points ``airflow_hops.capture_sinks``)."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.serving.capture.batch import Part, WaitingRecords, make_batch
from airflow_hops.serving.capture.options import CaptureOptions
from airflow_hops.serving.capture.record import CapturedCall, CapturedLabel, pack, pack_label
from airflow_hops.serving.capture.sinks import open_sink
from airflow_hops.serving.request_kind import RequestKind

_QUICK_S = 5.0


class CaptureSinkContract:
    """Tests that every sink passes; a subclass gives the scheme and a URL, and reads the stored rows.

    Attributes:
        scheme: Name in the entry-point group ``airflow_hops.capture_sinks``.
    """

    scheme: ClassVar[str]

    @pytest.fixture
    def url(self) -> str:
        """Returns the URL of an empty place, which can be reached."""
        raise NotImplementedError

    @abstractmethod
    def rows(self, url: str, count: int, labels: bool = False) -> Sequence[Mapping[str, Any]]:
        """Returns the stored rows of answered requests, or the labels; waits for a number of them."""

    def test_stores_rows_and_labels(self, url: str) -> None:
        sink = open_sink(url, "contract")
        for first in (0, 3):
            assert not sum(sink.send(_parts(first)).values())
        sink.close()
        stored = self.rows(url, 12)
        assert Counter((row["request_id"], row["row"]) for row in stored) == Counter(
            (f"r{number}", row) for number in range(6) for row in (0, 1)
        )
        row = next(row for row in stored if (row["request_id"], row["row"]) == ("r4", 1))
        assert (row["model"], row["version"], row["input.x"]) == ("m", 1, 5.0)
        labels = self.rows(url, 2, labels=True)
        assert sorted((label["request_id"], label["label.late"]) for label in labels) == [("r0", True), ("r3", True)]

    def test_a_later_sender_goes_on(self, url: str) -> None:
        """The writer of a spool was killed, and another one has taken the spool over."""
        open_sink(url, "contract").send(_parts(0))
        sink = open_sink(url, "contract")
        sink.send(_parts(3))
        sink.close()
        assert {row["request_id"] for row in self.rows(url, 12)} == {f"r{number}" for number in range(6)}

    def test_checks_a_url_without_waiting(self, url: str) -> None:
        began_s = time.monotonic()
        with pytest.raises((OSError, ValueError)):
            open_sink(f"{self.scheme}://", "")
        open_sink(url, "").close()
        assert time.monotonic() - began_s < _QUICK_S


def _parts(first: int) -> Sequence[Part]:
    """Returns a batch of three requests of two rows each, and a label of the first."""
    kind = RequestKind("m", 1, Method.PREDICT.label, "GRPC")
    records = []
    for number in range(first, first + 3):
        request, response = protocol.PredictRequest(), protocol.PredictResponse()
        tensors.fill_proto(request.inputs["x"], np.array([number, number + 1], np.float32))
        messages = request.SerializeToString(), response.SerializeToString()
        at_us = 1_700_000_000_000_000 + number
        records.append(pack(CapturedCall(kind, f"r{number}", at_us, 1.0, 2, *messages)))
    records.append(pack_label(CapturedLabel("m", f"r{first}", 0, {"late": True}, 0, 0)))
    return make_batch(WaitingRecords.of(records), CaptureOptions()).parts
