"""Removes credentials from texts that people see: messages, logs, pages.

It uses only the standard library; both sides import it. It removes the user and password of a URL, signatures and
tokens in its query, and values of fields with names such as ``password``, in dicts, JSON and ``name=value``.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

REDACTED = "***"

# A user may be a token. A password may hold what a URL forbids there; digits up to a slash are a port.
_USER = re.compile(r"""(://)(?:[^\s/'"]+|[^\s/@:\[\]'"]*:(?!\d+/)[^\s@'"]+)@""")
_SECRET = (
    r"[\w.-]*(?:secret|passw(?:or)?d|passphrase|secret[_.-]?(?:access[_.-]?)?key|(?:access|account|api|private|shared)"
    r"[_.-]?key|(?:access|auth|bearer|prediction|refresh|sas|security|serving|session)[_.-]?token|connection[_.-]?string)"
)
_QUERY = re.compile(rf"([?&;](?:{_SECRET}|sig|[\w-]*signature|[\w-]*credential)=)[^\s&;'\"]+", re.IGNORECASE)
_QUOTED = re.compile(
    rf"""((?<![\w.-])(?:\\?["'])?{_SECRET}(?:\\?["'])?\s*[:=]\s*(\\?["']))(?:(?!\2)[^\\]|\\(?!["'])|(?!\2)\\.)+(?=\2)""",
    re.IGNORECASE,
)
_MAY_HOLD_ONE = re.compile("secret|passw|passphrase|key|token|string|sig|credential", re.IGNORECASE)


def without_password(uri: str) -> tuple[str, str | None]:
    """Returns a URI without its password, and the password."""
    scheme, separator, rest = uri.partition("://")
    user, at, place = rest.partition("/")[0].rpartition("@")
    name, colon, password = user.partition(":")
    if not separator or not at or not colon:
        return uri, None
    return f"{scheme}://{name}@{place}{rest.removeprefix(f'{user}@{place}')}", unquote(password)


def redacted(text: str) -> str:
    """Returns a text without its credentials."""
    if "://" in text:
        text = _USER.sub(rf"\1{REDACTED}@", text)
    if _MAY_HOLD_ONE.search(text):
        text = _QUOTED.sub(rf"\1{REDACTED}", _QUERY.sub(rf"\1{REDACTED}", text))
    return text
