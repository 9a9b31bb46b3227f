"""Parses JSON bodies with TensorFlow Serving's checks, and formats values as in its messages."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from typing import Any

import orjson

from airflow_hops.serving.errors import MAX_MESSAGE_CHARS, invalid_argument

_JSON_TYPE = {dict: "Object", list: "Array", str: "String", int: "Number", float: "Number", type(None): "Null"}
_SHOWN = json.JSONEncoder(indent=4, ensure_ascii=False)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# An integer with more characters may exceed the largest double.
_LONGEST_INTEGER = 300


def parse_document(body: bytes) -> dict[str, object]:
    """Parses a body; raises ServingError if it is not a JSON object."""
    document = _parse(body)
    if not isinstance(document, dict):
        raise invalid_argument(f"JSON Value: {shown(document)} Is not object")
    return document


def signature_name(document: dict[str, object]) -> str:
    """Returns the signature that a body names, or an empty string; raises ServingError if it is not a string."""
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid_argument(
            f"JSON Value: {shown(document)} not formatted correctly. 'signature_name' key must be a string value."
        )
    return name


def _parse(body: bytes) -> object:
    if not body:
        raise invalid_argument("JSON Parse error: The document is empty")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        pass
    try:
        # orjson 3.13: does not parse bare NaN and Infinity, which TensorFlow Serving's JSON has.
        document = json.loads(body.decode(), parse_float=_double, parse_int=_integer)
        if _SURROGATE.search(body):
            json.dumps(document, ensure_ascii=False).encode()
        return document
    except json.JSONDecodeError as error:
        raise invalid_argument(f"JSON Parse error: {error.msg} at offset: {error.pos}") from None
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise invalid_argument(f"JSON Parse error: {error.reason} at offset: {error.start}") from None
    except RecursionError:
        raise invalid_argument("JSON Parse error: nested too deeply") from None
    except OverflowError as error:
        offset = body.find(str(error).encode())
        raise invalid_argument(
            f"JSON Parse error: Number too big to be stored in double. at offset: {offset}"
        ) from None


def _double(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise OverflowError(text)
    return value


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER:
        _double(text)
    return int(text)


def is_base64(value: object) -> bool:
    """Returns whether a value is ``{"b64": "…"}`` with no other keys."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def base64_bytes(value: dict[str, Any]) -> bytes:
    """Decodes ``{"b64": "…"}``; raises ServingError if the value does not have that form, or the text is not base64."""
    if not is_base64(value):
        raise invalid_argument(f"JSON Value: {shown(value)} not formatted correctly for base64 data")
    text = value["b64"]
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise invalid_argument("Unable to base64 decode") from None


def type_name(value: object) -> str:
    """Returns TensorFlow Serving's name for the type of a JSON value."""
    return str(value) if isinstance(value, bool) else _JSON_TYPE.get(type(value), "Unknown")


def shown(value: object) -> str:
    """Returns the value as TensorFlow Serving prints it in errors, cut to the maximum length of a message."""
    # Piece by piece, so that huge or deeply nested bodies are not formatted to their end.
    text = ""
    for piece in _SHOWN.iterencode(value):
        text += piece[:MAX_MESSAGE_CHARS]
        if len(text) >= MAX_MESSAGE_CHARS:
            break
    return text[:MAX_MESSAGE_CHARS]
