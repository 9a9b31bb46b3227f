"""File of a ``schema`` artifact: a ``Schema`` as protobuf text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from airflow_hops.core.errors import ArtifactNotFound, BadInput, UnreadableFile
from airflow_hops.core.schema.history import SCHEMA_FILE

__all__ = ["SCHEMA_FILE", "load_schema", "parse_schema", "to_text"]


def to_text(schema: object) -> str:
    """Returns the schema as protobuf text."""
    return str(text_format.MessageToString(schema, as_utf8=True))


def load_schema(path: str | Path) -> Any:
    """Reads a ``schema.pbtxt``; raises ``BadInput`` if it does not exist or does not parse."""
    try:
        return parse_schema(Path(path).read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise ArtifactNotFound(path, ": there is no schema") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(path, f": not a schema in protobuf text ({error})") from None


def parse_schema(text: str, source: str) -> Any:
    """Parses a ``Schema`` in protobuf text.

    Raises:
        BadInput: it does not parse (the message has line and column), or a feature has no name or another one's name.
    """
    try:
        schema = text_format.Parse(text, schema_pb2.Schema())
    except text_format.ParseError as error:
        place = f":{error.GetLine()}:{error.GetColumn()}" if error.GetLine() is not None else ""
        reason = re.sub(r"^\d+:\d+ : ", "", str(error))
        raise BadInput(f"{source}{place}: not a schema in protobuf text: {reason}") from None
    names: set[str] = set()
    for index, feature in enumerate(schema.feature):
        if not feature.name or feature.name in names:
            result = f"a second one named {feature.name!r}" if feature.name else "none"
            raise BadInput(
                f"{source}: feature {index + 1} of {len(schema.feature)}: expected a unique name, found {result}"
            )
        names.add(feature.name)
    return schema
