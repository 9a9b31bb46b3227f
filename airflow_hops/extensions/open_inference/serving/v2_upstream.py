"""Servers of the Open Inference Protocol behind a gateway: ``--upstream=v2://host:port``."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import grpc
import numpy as np

from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.core.serving_api.tls_files import TlsFiles
from airflow_hops.extensions.open_inference.serving.datatypes import TYPES, datatype_of, declare, fill_raw, to_raw
from airflow_hops.extensions.open_inference.serving.grpc_api import MESSAGES, SERVICE, fill_contents
from airflow_hops.serving.access import TokenFile
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.catalog import State, VersionStatus
from airflow_hops.serving.models.servable import DEFAULT_SIGNATURE
from airflow_hops.serving.models.signature_defs import PREDICT, fill_info
from airflow_hops.serving.upstream import Upstream

# The versions of a model are those of the config or, without a config, of the server's repository index and of the
# model's metadata. Both are hints: an index may be restricted to others, as Triton's is by PyTriton, or lack versions.
# Whether each is ready decides. A model that is ready without a numbered version (MLServer's may be "v1") is version 1,
# and its requests name none.

log = logging.getLogger(__name__)

UNVERSIONED = 1
"""Version by which a gateway names a model whose server names no version."""

_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_LOADING = ("LOADING", "UNKNOWN")
_NUMBER = re.compile(r"[1-9]\d{0,17}", re.ASCII)


class V2Upstream(Upstream):
    """A server of the Open Inference Protocol, such as MLServer or Triton, by its gRPC port.

    Predict requests become ``ModelInfer`` with raw tensors. A new config loads its models by the protocol's extension
    for repositories. There are no labels.
    """

    def __init__(self, address: str, tls: TlsFiles | None = None, token: TokenFile | None = None) -> None:
        super().__init__(address, tls, token)
        methods = ("ServerLive", "ModelReady", "ModelMetadata", "ModelInfer")
        repository = ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload")
        self._methods = {
            name: self._method(f"/{SERVICE}/{name}", MESSAGES[f"{name}Response"]) for name in (*methods, *repository)
        }
        self._configured: Mapping[str, Sequence[int]] = {}
        self._faults: dict[str, ServingError] = {}  # of the last load of each model
        self._unversioned: frozenset[str] = frozenset()

    def is_reachable(self, timeout_s: float) -> bool:
        """Returns whether the server responds."""
        try:
            self._ask("ServerLive", timeout_s)
        except ServingError as error:
            return error.code not in _AWAY
        return True

    def read_metadata(self, model: str, version: int | None, label: str | None, timeout_s: float) -> tuple[int, bytes]:
        """Requests the inputs and outputs of a version; see :meth:`Upstream.read_metadata`.

        Raises:
            ServingError: As there; or a label is asked for.
        """
        if label is not None or version is None:
            raise invalid_argument(
                f"Unrecognized servable version label: {label}. Servers of the Open Inference Protocol have no labels; "
                "name a version, or none"
            )
        try:
            metadata = self._ask("ModelMetadata", timeout_s, name=model, version=self._name(model, version))
        except ServingError as error:
            self._raise_if_away(error, timeout_s)
            code = grpc.StatusCode.FAILED_PRECONDITION if error.code in _AWAY else error.code
            raise ServingError(code, error.message) from None
        definitions = protocol.SignatureDefMap()
        definition = definitions.signature_def[DEFAULT_SIGNATURE]
        definition.method_name = PREDICT
        for infos, described in ((definition.inputs, metadata.inputs), (definition.outputs, metadata.outputs)):
            for each in described:
                if each.datatype in TYPES:
                    fill_info(infos[each.name], each.name, TYPES[each.datatype], tuple(each.shape))
        return version, definitions.SerializeToString()

    def reload(self, config: Any, timeout_s: float) -> None:
        """Loads the models of a config, and unloads those that it left out and the server's repository has no more.

        A load that fails is the error of the versions that are not ready then.

        Raises:
            ServingError: The server cannot be reached.
        """
        models = config.model_config_list.config
        self._configured = {each.name: tuple(each.model_version_policy.specific.versions) for each in models}
        index = self._index(timeout_s)
        for name in {*self._faults, *self.statuses} - self._configured.keys():
            self._faults.pop(name, None)
            if index is not None and name not in index:
                try:
                    self._ask("RepositoryModelUnload", timeout_s, model_name=name)
                except ServingError as error:
                    if error.code in _AWAY:
                        raise
                    log.info("upstream %s: model %s was not loaded: %s", self.address, name, error)
        for name in self._configured:
            self._faults.pop(name, None)
            try:
                self._ask("RepositoryModelLoad", timeout_s, model_name=name)
            except ServingError as error:
                if error.code in _AWAY:
                    raise
                # A server without a repository loads what it finds by itself, such as one that polls a folder.
                if error.code is not grpc.StatusCode.UNIMPLEMENTED:
                    self._faults[name] = error

    def _answer(self, method: Method, message: bytes, timeout_s: float | None) -> bytes:
        if method is not Method.PREDICT:
            raise ServingError(
                grpc.StatusCode.UNIMPLEMENTED,
                f"{self.address} speaks the Open Inference Protocol, without {method.label}",
            )
        request = protocol.PredictRequest.FromString(message)
        spec = request.model_spec
        if spec.signature_name not in ("", DEFAULT_SIGNATURE):
            raise invalid_argument(
                f"signature_name is {spec.signature_name}; models of the Open Inference Protocol have none but "
                f"{DEFAULT_SIGNATURE}"
            )
        infer = MESSAGES["ModelInferRequest"](
            model_name=spec.name, model_version=self._name(spec.name, spec.version.value)
        )
        for name in sorted(request.inputs):
            array = _array(f"input {name}", request.inputs[name])
            datatype = datatype_of(f"input {name}", tensors.type_of(array))
            infer.inputs.add(name=name, datatype=datatype, shape=array.shape)
            infer.raw_input_contents.append(to_raw(array))
        for name in request.output_filter:
            infer.outputs.add(name=name)
        response = self._call(self._methods["ModelInfer"], infer, timeout_s)
        answer = protocol.PredictResponse()
        answer.model_spec.name, answer.model_spec.signature_name = spec.name, DEFAULT_SIGNATURE
        answer.model_spec.version.value = spec.version.value
        try:
            _check_answer(response, infer)
            for index, output in enumerate(response.outputs):
                if infer.outputs and output.name not in request.output_filter:
                    continue
                _fill(answer.outputs[output.name], output, response.raw_output_contents, index)
        except (ServingError, IndexError) as error:
            raise ServingError(
                grpc.StatusCode.INTERNAL, f"the answer of {self.address} is not valid: {error}"
            ) from error
        serialized: bytes = answer.SerializeToString()
        return serialized

    def _read_statuses(self, model: str, timeout_s: float) -> Iterable[VersionStatus]:
        index = self._index(timeout_s)
        states = (index or {}).get(model) or self._states(model, timeout_s)
        configured = self._configured.get(model, ())
        numbers = {name: int(name) for name in states if _NUMBER.fullmatch(name)}
        has_numbers = bool(numbers)
        if configured:  # others, which the server may keep, are no longer wanted
            numbers = {str(number): number for number in configured}
        ready = {name for name in numbers if self._is_ready(model, name, timeout_s)}
        may_be_unversioned = not ready and not has_numbers and {UNVERSIONED}.issuperset(configured)
        if may_be_unversioned and self._is_ready(model, "", timeout_s):
            if model not in self._unversioned:
                log.warning("upstream %s: model %s has no numbered version; it is version 1", self.address, model)
                self._unversioned |= {model}
            return [VersionStatus(UNVERSIONED, State.AVAILABLE, None)]
        self._unversioned -= {model}
        statuses = []
        for name, number in numbers.items():
            if name in ready:
                statuses.append(VersionStatus(number, State.AVAILABLE, None))
            elif number in configured:
                fault = self._faults.get(model)
                is_loading = index is None or states.get(name) in _LOADING
                state = State.LOADING if fault is None and is_loading else State.END
                if fault is None and state is State.END:
                    fault = ServingError(grpc.StatusCode.NOT_FOUND, f"{self.address} does not have the version")
                statuses.append(VersionStatus(number, state, fault))
        return statuses

    def _states(self, model: str, timeout_s: float) -> Mapping[str, str]:
        """Returns the versions that the model's metadata names; ``""`` for a model without a version."""
        try:
            names = self._ask("ModelMetadata", timeout_s, name=model).versions
        except ServingError as error:
            self._raise_if_away(error, timeout_s)
            if error.code is not grpc.StatusCode.NOT_FOUND:
                log.warning("upstream %s: the versions of model %s are unknown: %s", self.address, model, error)
            return {}
        return dict.fromkeys(names or [""], "")

    def _index(self, timeout_s: float) -> dict[str, dict[str, str]] | None:
        """Returns model to version to state of the server's repository; None if it has none."""
        try:
            entries = self._ask("RepositoryIndex", timeout_s).models
        except ServingError as error:
            self._raise_if_away(error, timeout_s)
            return None
        models: dict[str, dict[str, str]] = {}
        for entry in entries:
            models.setdefault(entry.name, {})[entry.version] = entry.state
        return models

    def _is_ready(self, model: str, version: str, timeout_s: float) -> bool:
        try:
            return bool(self._ask("ModelReady", timeout_s, name=model, version=version).ready)
        except ServingError as error:
            self._raise_if_away(error, timeout_s)
            return False

    def _raise_if_away(self, error: ServingError, timeout_s: float) -> None:
        """Raises the error if the server is away: Triton also answers UNAVAILABLE for methods that it restricts."""
        if error.code in _AWAY and not self.is_reachable(timeout_s):
            raise error

    def _ask(self, method: str, timeout_s: float, **fields: str) -> Any:
        return self._call(self._methods[method], MESSAGES[f"{method}Request"](**fields), timeout_s)

    def _name(self, model: str, version: int) -> str:
        return "" if model in self._unversioned else str(version)


def _array(tensor: str, proto: object) -> np.ndarray:
    try:
        return tensors.from_proto(proto)
    except tensors.TensorError as error:
        raise invalid_argument(f"{tensor}: {error}") from error


def _check_answer(response: Any, infer: Any) -> None:
    """Raises ServingError if an answer is not that of the version and the outputs that were asked for."""
    names = [output.name for output in response.outputs]
    if infer.model_version and response.model_version not in ("", infer.model_version):
        raise invalid_argument(
            f"it is of version {response.model_version}, but version {infer.model_version} was asked"
        )
    for name in names:
        if names.count(name) > 1:
            raise invalid_argument(f"it has output {name} twice")
    if missing := {output.name for output in infer.outputs}.difference(names):
        raise invalid_argument(f"it lacks output {min(missing)}")


def _fill(tensor: Any, output: Any, raw: Sequence[bytes], index: int) -> None:
    """Fills the ``TensorProto`` of an output."""
    declared = declare(output.name, output.datatype, output.shape[:])
    tensors.fill_header(tensor, declared.tensor_type, declared.shape)
    if raw:
        fill_raw(tensor, declared, raw[index], f"raw_output_contents[{index}]")
    else:
        fill_contents(tensor, declared, output.contents)
