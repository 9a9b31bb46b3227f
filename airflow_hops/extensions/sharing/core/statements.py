"""Signed statements of organisations about their shared data sets.

A statement is a JSON object with a ``content`` (the text of a JSON object), its ``kind``, the signer's Ed25519 key and
the signature of kind and content. The text is signed as it is, so no canonical form of JSON is needed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_files import parse_json
from airflow_hops.core.processes.files import make_private
from airflow_hops.extensions.sharing.core.entries import check_text

ENTRY, SEED, CATALOGUE = "dataset", "seed", "catalogue"


def create_key(path: Path) -> None:
    """Creates a private key that only this user can read.

    Raises:
        BadInput: the file exists.
    """
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    make_private(path.parent)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise BadInput(f"{path}: already exists; others know this organisation by that key, so it is kept") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)


def load_key(path: Path) -> Ed25519PrivateKey:
    """Reads a private key.

    Raises:
        BadInput: the file is missing, or is not an Ed25519 key in PEM.
    """
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no key; create one with 'airflow hops datasets keys --create'") from None
    except (ValueError, TypeError) as error:
        raise BadInput(f"{path}: expected an Ed25519 key in PEM without a password ({error})") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadInput(f"{path}: expected an Ed25519 key, but it is an {type(key).__name__}")
    return key


def public_text(key: Ed25519PrivateKey) -> str:
    """Returns the public key of a private key in Base64, which organisations exchange."""
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return base64.b64encode(raw).decode()


def check_public_text(text: str) -> str:
    """Returns a public key in Base64. Raises BadInput if it is not one."""
    try:
        Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error) as error:
        raise BadInput(f"key {text!r}: expected 32 bytes in Base64, as 'airflow hops datasets keys' prints") from error
    return text


def sign(key: Ed25519PrivateKey, kind: str, content: Mapping[str, object]) -> dict[str, str]:
    """Returns a signed statement with this content."""
    text = json.dumps(content, sort_keys=True)
    signature = base64.b64encode(key.sign(_signed(kind, text))).decode()
    return {"kind": kind, "content": text, "key": public_text(key), "signature": signature}


def verify(statement: object, trusted: Mapping[str, str]) -> tuple[str, str, Any]:
    """Returns the signer's name, the kind and the content of a statement.

    Args:
        statement: An untrusted JSON value.
        trusted: Names of organisations by public key.

    Raises:
        ValueError: it is not a statement, the key is not trusted, or the signature is wrong.
    """
    names = ("kind", "content", "key", "signature")
    if not isinstance(statement, dict) or not all(isinstance(statement.get(name), str) for name in names):
        raise ValueError(f"expected a statement with the text fields {', '.join(names)}")
    kind, text, key, signature = (statement[name] for name in names)
    if key not in trusted:
        raise ValueError(f"signed with the key {key[:60]}, which is not trusted")
    try:
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key, validate=True))
        public.verify(base64.b64decode(signature, validate=True), _signed(kind, text))
    except (InvalidSignature, ValueError):
        raise ValueError(f"the signature is not that of {trusted[key]}: forged, or damaged in transit") from None
    content = parse_json(text, f"statement of {trusted[key]}")
    check_text(content)
    return trusted[key], kind, content


def sign_catalogue(key: Ed25519PrivateKey, statements: Sequence[object], sequence: int) -> dict[str, str]:
    """Returns the signed statement that a catalogue consists of these statements, with its sequence number."""
    return sign(key, CATALOGUE, {"sequence": sequence, "statements": digest_of(statements)})


def sequence_of(statement: object, statements: Sequence[object], trusted: Mapping[str, str]) -> int:
    """Returns the sequence number of a catalogue.

    Raises:
        ValueError: the statement is not of a trusted key, or is about other statements.
    """
    _, kind, content = verify(statement, trusted)
    if kind != CATALOGUE or not isinstance(content, dict) or type(content.get("sequence")) is not int:
        raise ValueError("its signature is not that of a catalogue with a sequence number")
    if content.get("statements") != digest_of(statements):
        raise ValueError("its signature is that of other statements: forged, or damaged in transit")
    return int(content["sequence"])


def digest_of(value: object) -> str:
    """Returns the SHA-256 (hex) of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _signed(kind: str, text: str) -> bytes:
    return f"airflow-hops {kind}\n{text}".encode()
