"""JSON bodies: read with TensorFlow Serving's checks, and shown as its messages show them."""

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
# An integer of more characters may be beyond the largest double.
_LONGEST_INTEGER = 300


def parse_document(body: bytes) -> dict[str, Any]:
    """Parses a body.

    Raises:
        ServingError: It is not JSON, or no object.
    """
    document = _parse(body)
    if not isinstance(document, dict):
        raise invalid_argument(f"JSON Value: {shown(document)} Is not object")
    return document


def signature_name(document: dict[str, Any]) -> str:
    """Returns the signature that a body names; empty for the default.

    Raises:
        ServingError: What it names is no string.
    """
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid_argument(
            f"JSON Value: {shown(document)} not formatted correctly. 'signature_name' key must be a string value."
        )
    return name


def _parse(body: bytes) -> Any:
    if not body:
        raise invalid_argument("JSON Parse error: The document is empty")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        pass
    try:
        # NaN and Infinity stand bare in TensorFlow Serving's JSON, which orjson does not read.
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


def is_base64(value: Any) -> bool:
    """Whether a value is ``{"b64": "…"}``, and nothing else in it."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def base64_bytes(value: dict[str, Any]) -> bytes:
    """Decodes ``{"b64": "…"}``.

    Raises:
        ServingError: It is not of that form, or not base64.
    """
    if not is_base64(value):
        raise invalid_argument(f"JSON Value: {shown(value)} not formatted correctly for base64 data")
    text = value["b64"]
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise invalid_argument("Unable to base64 decode") from None


def type_name(value: Any) -> str:
    """Returns the type of a JSON value as TensorFlow Serving names it."""
    return str(value) if isinstance(value, bool) else _JSON_TYPE.get(type(value), "Unknown")


def null_hint(kind: str, may_be_missing: bool) -> str:
    """Returns what to send in place of null, for the end of an error."""
    if may_be_missing:
        return ". Send a missing number as NaN, without quotes"
    return f". No {kind} can be missing: only an input of floats can, as NaN"


def shown(value: Any) -> str:
    """Returns the value as TensorFlow Serving prints it in errors, as far as the longest message goes."""
    # Piece by piece: neither a body of many megabytes nor one of a thousand levels is gone through to its end.
    text = ""
    for piece in _SHOWN.iterencode(value):
        text += piece[:MAX_MESSAGE_CHARS]
        if len(text) >= MAX_MESSAGE_CHARS:
            break
    return text[:MAX_MESSAGE_CHARS]
