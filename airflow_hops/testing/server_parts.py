"""Contract tests of parts of the model server and of look-ups (entry points ``airflow_hops.server_parts``)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from airflow_hops.core.contract.artifacts import Artifact, BadInput
from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import Method, PredictRequest, PredictResponse
from airflow_hops.serving.capture.capture import Capture
from airflow_hops.serving.capture.options import CaptureOptions
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flag_parser import make_parser, parse_flags
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.models.lookups import Lookup
from airflow_hops.serving.models.servable import Call, Reply, Servable
from airflow_hops.serving.models.traffic import TrafficTable
from airflow_hops.serving.parts import Answered, ServerPart, server_parts


class ServerPartContract:
    """Tests that every part passes; for pytest in the runtime environment.

    Attributes:
        name: Name in the entry-point group ``airflow_hops.server_parts``.
    """

    name: ClassVar[str]

    @pytest.fixture
    def arguments(self) -> Sequence[str]:
        """Returns flags of the part, as on a command line."""
        return ()

    @pytest.fixture
    def part(self) -> ServerPart:
        return server_parts()[self.name]

    @pytest.fixture
    def flags(self, arguments: Sequence[str]) -> Flags:
        return parse_flags(["--model_base_path=/models", *arguments])[0]

    def test_flags_are_in_help(self, part: ServerPart) -> None:
        shown = make_parser().format_help()
        for each in fields(part.flags):
            assert f"--{each.name}" in shown
        assert part.models_flag in ("", *(each.name for each in fields(part.flags)))

    def test_flags_are_parsed_and_reach_other_processes(self, part: ServerPart, arguments: Any, flags: Flags) -> None:
        assert (flags.of(part.flags) != part.flags()) == bool(arguments)
        assert pickle.loads(pickle.dumps(flags)).of(part.flags) == flags.of(part.flags)
        assert part.check(flags) == ""

    def test_observer_takes_requests_of_any_model(self, part: ServerPart, flags: Flags) -> None:
        observer = part.observer(flags, Catalog(TrafficTable(None)), Capture(CaptureOptions()))
        if observer is None:
            return
        observer.offer(Answered(None, "grpc", "m", 1, Call(Method.PREDICT, b""), Reply(b"", 1)))
        total = observer.counts()
        total.add(pickle.loads(pickle.dumps(observer.counts())))
        json.dumps(total.report("m"))
        assert total.report("another") == {}
        observer.close()


class LookupContract(ServerPartContract):
    """Tests that every look-up passes, besides those of a part.

    Attributes:
        options: Argument ``lookup_options`` of ``DeployModelOperator``.
        keys: One request, by key.
    """

    options: ClassVar[Mapping[str, Any]] = {}
    keys: ClassVar[Mapping[str, np.ndarray]]

    @pytest.fixture
    def data(self) -> Artifact:
        """Returns the argument ``lookup``."""
        raise NotImplementedError

    @pytest.fixture
    def model(self) -> Artifact:
        """Returns the model, whose property ``inputs`` lists those of ``servable``."""
        raise NotImplementedError

    @pytest.fixture
    def servable(self) -> Servable:
        """Returns a version that takes all inputs, some of which the look-up fills."""
        raise NotImplementedError

    @pytest.fixture
    def lookup(self, part: ServerPart) -> Lookup:
        assert isinstance(part, Lookup)
        return part

    @pytest.fixture
    def description(self, lookup: Lookup, data: Artifact, model: Artifact) -> Mapping[str, Any]:
        """Returns the description, as it is read from a version's folder."""
        value: Mapping[str, Any] = json.loads(json.dumps(lookup.describe(data, model, self.options)))
        return value

    @pytest.fixture
    def opened(
        self, lookup: Lookup, flags: Flags, servable: Servable, description: Mapping[str, Any]
    ) -> Iterator[Servable]:
        opened = lookup.opener(flags)(servable, description)
        yield opened
        opened.close()

    def test_leaves_data_of_others(self, lookup: Lookup, data: Artifact, model: Artifact) -> None:
        assert lookup.describe(replace(data, kind="another", properties={}), model, {}) is None

    def test_refuses_unknown_options(self, lookup: Lookup, data: Artifact, model: Artifact) -> None:
        with pytest.raises(BadInput, match="unknown_to_the_lookup"):
            lookup.describe(data, model, {"unknown_to_the_lookup": 1})

    def test_refuses_a_damaged_description(self, lookup: Lookup, flags: Flags, servable: Servable) -> None:
        with pytest.raises((KeyError, ValueError, TypeError)):
            lookup.request_keys({"unknown": 1})
        with pytest.raises(ServingError):
            lookup.opener(flags)(servable, {"unknown": 1})

    def test_requests_hold_keys(self, lookup: Lookup, opened: Servable, description: Mapping[str, Any]) -> None:
        of_requests, types = lookup.request_keys(description), opened.signature("").input_types
        assert of_requests.filled
        assert not of_requests.filled & types.keys()
        assert {name: types[name].name for name in of_requests.keys} == of_requests.keys  # type: ignore[union-attr]
        assert self.keys.keys() <= types.keys()

    def test_answers_keys_and_refuses_filled_inputs(
        self, lookup: Lookup, opened: Servable, description: Mapping[str, Any]
    ) -> None:
        request = PredictRequest()
        for name, values in self.keys.items():
            tensors.fill_proto(request.inputs[name], values)
        reply = opened.answer(Call(Method.PREDICT, request.SerializeToString()))
        assert PredictResponse.FromString(reply.message).outputs
        if reply.captured is not None:
            assert lookup.request_keys(description).filled <= set(PredictRequest.FromString(reply.captured).inputs)
        for name in lookup.request_keys(description).filled:
            tensors.fill_proto(request.inputs[name], np.zeros(1, np.float32))
        with pytest.raises(ServingError):
            opened.answer(Call(Method.PREDICT, request.SerializeToString()))
