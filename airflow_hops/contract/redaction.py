"""Takes credentials out of texts that people see: messages, logs, pages.

Standard library only; both sides import it. What goes: the user and password of a URL, signatures and tokens in its
query, and values of fields with telling names, as the representation of a dict, JSON or ``name=value`` shows them.
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
    """A URI less the password in it, and the password."""
    scheme, separator, rest = uri.partition("://")
    user, at, place = rest.partition("/")[0].rpartition("@")
    name, colon, password = user.partition(":")
    if not separator or not at or not colon:
        return uri, None
    return f"{scheme}://{name}@{place}{rest.removeprefix(f'{user}@{place}')}", unquote(password)


def redacted(text: str) -> str:
    """A text without the credentials in it."""
    if "://" in text:
        text = _USER.sub(rf"\1{REDACTED}@", text)
    if _MAY_HOLD_ONE.search(text):
        text = _QUOTED.sub(rf"\1{REDACTED}", _QUERY.sub(rf"\1{REDACTED}", text))
    return text
