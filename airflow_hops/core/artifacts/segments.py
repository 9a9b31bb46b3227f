"""Ids as segments of paths: different ids have different segments, and a segment leads back to its id.

Letters and digits of any language, ``_``, ``-``, ``.``, ``+`` and ``@`` stay, ``:`` becomes ``~``, and other characters
become ``!`` and two hexadecimal digits for each byte of UTF-8. So do ``_`` and ``.`` at the beginning, since such names
are the store's own and hidden files.
"""

from __future__ import annotations

import re

from airflow_hops.core.errors import BadInput

MOST_BYTES = 236
"""Maximum length of a segment, with which ``.<segment>.json.<12 digits>``, a temporary file, fits a file system."""

_ESCAPED = re.compile(r"^[._]|^E(?=xperiments$)|[^\w.+@:-]")
_ESCAPES = re.compile(r"(?:![0-9A-F]{2})+")
_SEGMENT = re.compile(r"[\w.+@~!-]+")


def segment(name: str) -> str:
    """Returns the segment of an id.

    Raises:
        BadInput: the id is empty, or its segment too long for a file system.
    """
    result = _ESCAPED.sub(lambda match: "".join(f"!{byte:02X}" for byte in _bytes(match[0])), name).replace(":", "~")
    if not result:
        raise BadInput("an id is empty; expected at least one character, since it names a folder")
    if (size := len(_bytes(result))) > MOST_BYTES:
        raise BadInput(
            f"{name[:60]!r}… has {size} bytes as the name of a folder; expected at most {MOST_BYTES}; shorten it"
        )
    return result


def name_in(segment: str) -> str:
    """Returns the id of a segment."""
    return _ESCAPES.sub(
        lambda match: bytes.fromhex(match[0].replace("!", "")).decode(errors="surrogatepass"), segment.replace("~", ":")
    )


def is_segment(text: str) -> bool:
    """Returns whether a text has only the characters of a segment."""
    return _SEGMENT.fullmatch(text) is not None and text not in (".", "..")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
