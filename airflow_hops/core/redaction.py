"""Removes credentials from texts and parameters that people see: messages, logs, records, pages.

Only the standard library is imported, since both sides use this module. It removes the user and password of a URL,
signatures and tokens in its query, values of fields with names such as ``password`` (in dicts, JSON, ``name=value`` and
options of commands), credentials with a known format, and the secrets registered with :func:`hide`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

REDACTED = "***"

# A user may be a token. A password may contain characters that URLs forbid there; digits up to a slash are a port. In
# URIs of Azure, the container is in the place of the user.
_USER = re.compile(r"""(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)(://)(?:[^\s/'"]+|[^\s/@:\[\]'"]*:(?!\d+/)[^\s@'"]+)@""")
_SECRET = (
    r"[\w.-]*(?:secret|passw(?:or)?d|passphrase|passcode|pwd|secret[_.-]?(?:access[_.-]?)?key"
    r"|(?:access|account|api|encryption|private|service|shared|signing)[_.-]?key|account\.key\.[\w.-]+"
    r"|webhook[_.-]?url|dsn|connection[_.-]?string"
    r"|(?:access|api|auth|bearer|hf|prediction|refresh|sas|security|serving|session)[_.-]?token)"
)
_QUERY = re.compile(
    rf"([?&;](?:{_SECRET}|[\w-]*token|[\w-]*signature|[\w-]*credential|sig|key|pass|auth)=)[^\s&;'\"]+", re.IGNORECASE
)
_NAMED = rf"""(?<![\w.-])(?:\\?["'])?{_SECRET}(?:\\?["'])?\s*"""
# Possessive, to avoid backtracking in a text without a closing quote, of which the rest of the line is removed.
_QUOTED = re.compile(
    rf"""({_NAMED}[:=]\s*[bru]{{0,2}}(\\?["']))(?:(?:(?!\2)(?:\\\\\\.|\\.|[^\\]))++(?=\2)|(?!\2)[^\n]+)""",
    re.IGNORECASE,
)
# After a colon, one word at the end of a line or item is a value; several words are a sentence.
_UNQUOTED = re.compile(
    rf"""({_NAMED}(?:=\s*|:\s*(?=[^\s,;}})\]]+\s*(?:[,;}})\]]|$))))(?![bru]{{0,2}}\\?["']|(?:none|null|true|false)\b)"""
    r"""[^\s'"&;]*[^\s'"&;,)}\]\\]""",
    re.IGNORECASE | re.MULTILINE,
)
_OPTION = re.compile(rf"((?<!\S)--?{_SECRET}\s+)(?![-'\"])\S+", re.IGNORECASE)
_HEADER = re.compile(
    r"""(authorization(?:\\?["'])?\s*[:=]\s*(?:\\?["'])?(?:(?:basic|bearer|token)\s+)?)[^\s'"\\]+""", re.IGNORECASE
)
_MAY_HOLD_ONE = re.compile(
    r"""account\.key\.|(?:secret|passw(?:or)?d|passphrase|passcode|pwd|key|token|url|dsn|string|signature|credential|sig|pass|auth"""
    r"""|authorization)(?:\\?["'])?\s*[:=]|(?<!\S)--?[\w.-]*(?:secret|pass|pwd|key|token|dsn|url|string)""",
    re.IGNORECASE,
)
# GitHub, GitLab, Hugging Face, OpenAI and Anthropic, Slack, Google, Databricks, AWS; JSON web tokens; private keys,
# also within JSON. Other tokens look like random names.
_FORM = re.compile(
    r"(?<![\w-])(?:gh[opusr]_\w{36}|github_pat_\w{22}|glpat-[\w-]{20}|hf_[a-zA-Z]{30}|sk-[\w-]*[a-zA-Z0-9]{20}"
    r"|xox[abeoprs]-[\w-]{10}|AIza[\w-]{35}|dapi[0-9a-f]{32}|A[KS]IA[0-9A-Z]{16}|eyJ[\w-]{7,}\.eyJ[\w-]{5,}\.)[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_MAY_HAVE_FORM = re.compile("gh[opusr]_|github_pat_|glpat-|hf_|sk-|xox|AIza|dapi|A[KS]IA|eyJ|PRIVATE KEY")
_SECRET_NAME = re.compile(rf"(?:{_SECRET}|[\w.-]*authorization|[\w.-]*credential)s?", re.IGNORECASE)
# Tokens of a vocabulary, such as padding, are not secrets.
_TOKEN_NAME = re.compile(
    r"(?!.*(?:bos|cls|end|eos|mask|oov|pad|sep|special|start|unk)[_.-]?token)(?:.*[_.-])?(?:token|pass|cookie)",
    re.IGNORECASE,
)
_NO_TOKEN = re.compile(r"\d+|<.*>|\[.*\]")
"""Value of a field called token that is a number of tokens, or a token of a vocabulary."""
LEAST_CHARACTERS = 5
"""Minimum length of a secret that is masked in texts; shorter ones occur in other words."""

_hidden: list[str] = []


def hide(values: Iterable[object]) -> None:
    """Registers values that :func:`redacted` removes in this process and its forks, also if encoded in JSON or URLs."""
    lines = (line for value in values if isinstance(value, str) for line in (value, *value.splitlines()))
    texts = [line for line in lines if len(line) >= LEAST_CHARACTERS]  # logs have lines
    forms = {form for text in texts for form in (text, json.dumps(text)[1:-1], quote(text, safe=""))}
    _hidden[:] = sorted({*_hidden, *forms}, key=len, reverse=True)


def without_password(uri: str) -> tuple[str, str | None]:
    """Returns a URI without its password, and the password."""
    scheme, separator, rest = uri.partition("://")
    user, at_sign, place = rest.partition("/")[0].rpartition("@")
    name, colon, password = user.partition(":")
    if not separator or not at_sign or not colon:
        return uri, None
    return f"{scheme}://{name}@{place}{rest.removeprefix(f'{user}@{place}')}", unquote(password)


def redacted(text: str) -> str:
    """Returns a text without its credentials."""
    for value in _hidden:
        text = text.replace(value, REDACTED)
    if _MAY_HAVE_FORM.search(text):
        text = _FORM.sub(REDACTED, text)
    if "://" in text:
        text = _USER.sub(rf"\1{REDACTED}@", text)
    if _MAY_HOLD_ONE.search(text):
        for pattern in (_QUERY, _HEADER, _QUOTED, _UNQUOTED, _OPTION):
            text = pattern.sub(rf"\1{REDACTED}", text)
    return text


def masked(value: object) -> Any:
    """Returns a copy of a JSON value without credentials in texts and without values whose names indicate a secret."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {name: REDACTED if _is_secret(str(name), item) else masked(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        # An option of a command is followed by its value.
        options_before = [None, *value][: len(value)]
        options = (isinstance(option, str) and option.startswith("-") for option in options_before)
        return [
            REDACTED if named and _is_secret(str(option).lstrip("-"), item) else masked(item)
            for named, option, item in zip(options, options_before, value, strict=True)
        ]
    return value


def secrets_in(value: object) -> Iterator[str]:
    """Yields the texts in a JSON value whose names indicate a secret."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts_in(item) if _is_secret(str(name), item) else secrets_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from secrets_in(item)


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(item)


def _is_secret(name: str, value: object) -> bool:
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return False
    is_secret, is_token = _kind_of(name)
    return is_secret or (is_token and isinstance(value, str) and not _NO_TOKEN.fullmatch(value))


@lru_cache(maxsize=4096)
def _kind_of(name: str) -> tuple[bool, bool]:
    """Returns whether a name indicates a secret, and whether it does so for a text that is not a number, as a token."""
    return _SECRET_NAME.fullmatch(name) is not None, _TOKEN_NAME.fullmatch(name) is not None
