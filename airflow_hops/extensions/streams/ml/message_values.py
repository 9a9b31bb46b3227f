"""Decodes the values of messages: JSON and Avro, the latter by schemas of a registry.

Values with a registered schema begin with a zero byte and the schema's id, four bytes (Confluent's wire format). Values
of one schema have the same Arrow type.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson
import pyarrow as pa

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.extensions.streams.core.source import VALUE_FORMATS
from airflow_hops.extensions.streams.core.topic import REGISTRY_PREFIX
from airflow_hops.extensions.streams.ml.message_types import (
    Poison,
    avro_type,
    check_storable,
)
from airflow_hops.ml.readers.jsonl import parse_json

_HEADER_BYTES = 5

Fields = Mapping[str, Any]
Decode = Callable[[bytes], Fields]


def decode_json(value: bytes) -> Fields:
    """Returns the fields of a JSON object. Raises Poison if the value is not one."""
    try:
        fields = orjson.loads(value)
        parse_json(value)  # orjson accepts a field twice, and more levels than readers do
    except orjson.JSONDecodeError:
        raise Poison("not JSON") from None
    except ValueError as error:
        raise Poison("a field occurs twice") from error
    except RecursionError as error:
        raise Poison("values are nested too deeply") from error
    if not isinstance(fields, dict):
        raise Poison("not a JSON object")
    return fields


class Registry:
    """Decodes values by the schemas of a Confluent schema registry.

    Args:
        options: ``schema.registry.url`` and other options of confluent-kafka's client with the same prefix.
        format: Expected kind of the schemas: ``json`` or ``avro``; None for the kind of each schema.

    Raises:
        BadInput: the options have no URL, or the client refuses one.
    """

    def __init__(self, options: Mapping[str, object], format: str | None) -> None:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        config = {
            name.removeprefix(REGISTRY_PREFIX): v for name, v in options.items() if name.startswith(REGISTRY_PREFIX)
        }
        if "url" not in config:
            raise BadInput(
                f"format {format!r} needs a schema registry; give 'schema.registry.url' in the extra of the connection "
                "or in the source's 'storage_options'"
            )
        try:
            self._client = SchemaRegistryClient(config)
        except (TypeError, ValueError) as error:
            raise BadInput(f"schema registry: {error}") from error
        self._url, self._format = config["url"], format
        self._decoders: dict[bytes, tuple[Decode, pa.DataType | None] | Poison] = {}

    def decoder(self, value: bytes) -> tuple[bytes, Decode, pa.DataType | None]:
        """Returns the id of a value's schema, the function that decodes the value, and its type; None for JSON.

        Raises:
            Poison: the value has no schema, the registry does not know it, or it cannot be used.
            HopsError: the registry does not answer.
            BadInput: the registry refuses the request; the schema is not a record, or has a union that does not fit a
                column.
        """
        if len(value) < _HEADER_BYTES or value[0]:
            raise Poison("no schema ID")
        key = value[1:_HEADER_BYTES]
        if key not in self._decoders:
            try:
                self._decoders[key] = self._make_decoder(int.from_bytes(key, "big"))
            except Poison as error:
                self._decoders[key] = error
        decoder = self._decoders[key]
        if isinstance(decoder, Poison):
            raise decoder
        return key, *decoder

    def _make_decoder(self, schema_id: int) -> tuple[Decode, pa.DataType | None]:
        schema = self._ask(lambda: self._client.get_schema(schema_id))
        kind = str(schema.schema_type or "AVRO").lower()
        if self._format is not None and kind != self._format:
            raise Poison(f"schema is {kind}, expected {self._format}")
        if kind not in VALUE_FORMATS:
            raise Poison(f"schema is {kind}, expected {' or '.join(VALUE_FORMATS)}")
        if kind == "json":
            return (lambda value: decode_json(value[_HEADER_BYTES:])), None
        try:
            decode, type_ = self._avro(schema)
            check_storable(type_)
            return decode, type_
        except (Poison, HopsError):
            raise
        except Exception as error:  # a schema can cause any error
            raise Poison(f"schema {schema_id} cannot be used ({type(error).__name__}: {str(error)[:100]})") from error

    def _ask(self, request: Callable[[], object]) -> Any:
        from confluent_kafka.schema_registry import SchemaRegistryError

        try:
            return request()
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                raise Poison("schema is not in the registry") from None
            code = error.http_status_code
            kind = BadInput if 400 <= code < 500 and code not in (408, 429) else HopsError
            raise kind(f"schema registry {self._url}: {error}") from error
        except Exception as error:  # the errors are those of the client's HTTP library
            raise HopsError(f"schema registry {self._url} does not answer ({type(error).__name__}: {error})") from error

    def _avro(self, schema: Any) -> tuple[Decode, pa.DataType]:
        import fastavro

        named: dict[str, Any] = {}

        def parse(schema: Any) -> Any:
            for reference in schema.references or ():
                parse(self._ask(partial(self._client.get_version, reference.subject, reference.version)).schema)
            return fastavro.parse_schema(orjson.loads(schema.schema_str), named_schemas=named)

        parsed = parse(schema)

        def decode(value: bytes) -> Fields:
            stream = io.BytesIO(value[_HEADER_BYTES:])
            try:
                fields = fastavro.schemaless_reader(stream, parsed)
            except Exception as error:  # the bytes can cause any error
                raise Poison("not Avro of its schema") from error
            if stream.read(1):
                raise Poison("not Avro of its schema")
            decoded: Fields = _for_arrow(fields, type_)
            return decoded

        type_ = avro_type(parsed, named)
        if not pa.types.is_struct(type_):
            raise BadInput(f"schema registry {self._url}: {schema.schema_str[:200]} is not a record, as rows must be")
        return decode, type_


def _for_arrow(value: Any, type_: pa.DataType) -> Any:
    """Returns a decoded value with the pairs of maps in a list, and UUIDs as text, which Arrow expects."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {field.name: _for_arrow(value[field.name], field.type) for field in type_}
    if pa.types.is_map(type_):
        return [(key, _for_arrow(item, type_.item_type)) for key, item in value.items()]
    if pa.types.is_list(type_):
        return [_for_arrow(item, type_.value_type) for item in value]
    return str(value) if isinstance(value, uuid.UUID) else value
