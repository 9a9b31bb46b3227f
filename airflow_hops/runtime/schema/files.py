"""The file of a ``schema`` artifact: a ``Schema`` as protobuf text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_hops.artifacts import BadInput

SCHEMA_FILE = "schema.pbtxt"


def to_text(schema: Any) -> str:
    """The schema as protobuf text."""
    from google.protobuf import text_format

    return str(text_format.MessageToString(schema))


def load_schema(path: Path) -> Any:
    """Reads a ``schema.pbtxt``.

    Raises:
        BadInput: there is none, or it does not parse.
    """
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    try:
        return text_format.Parse(path.read_text(), schema_pb2.Schema())
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no schema") from None
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: not a schema in protobuf text ({error})") from None
