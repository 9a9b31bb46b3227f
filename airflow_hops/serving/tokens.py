"""Files of tokens, which are reloaded when they change."""

from __future__ import annotations

import hmac
import logging
import time
from pathlib import Path

from airflow_hops.core.serving_api.config import ConfigError

log = logging.getLogger(__name__)

_LOOK_S = 1.0


class TokenFile:
    """Tokens of a file, one per line; empty lines and lines that begin with ``#`` are ignored.

    While tokens are compared, the file is checked for changes once a second, so a new token can be added before the old
    one is removed. If the file becomes unreadable, the previous tokens stay valid and the log says so.

    Args:
        flag: Flag that names the file.
        path: Path of the file.

    Raises:
        ConfigError: The file cannot be read, or does not contain a token.
    """

    def __init__(self, flag: str, path: str) -> None:
        self.flag = flag
        self._path = Path(path)
        self._state: tuple[int, int, int] | None = None
        self._look_at_s = 0.0
        self._tokens: tuple[bytes, ...] = ()
        self._said = ""
        try:
            self._read()
        except (OSError, ConfigError) as error:
            raise ConfigError(self._fault(error)) from error

    @property
    def first(self) -> str:
        """The first token."""
        return self._current()[0].decode()

    def holds(self, token: bytes) -> bool:
        """Returns whether the file contains a token; the comparison does not leak tokens through timing."""
        return any(hmac.compare_digest(token, known) for known in self._current())

    def _current(self) -> tuple[bytes, ...]:
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + _LOOK_S
            try:
                self._read()
                self._said = ""
            except (OSError, ConfigError) as error:
                fault = self._fault(error)
                if fault != self._said:
                    log.error("%s; the tokens that were read before stay valid", fault)
                self._said = fault
        return self._tokens

    def _read(self) -> None:
        result = self._path.stat()
        state = (result.st_mtime_ns, result.st_size, result.st_ino)
        if state == self._state:
            return
        lines = [line.strip() for line in self._path.read_bytes().splitlines()]
        tokens = [line for line in lines if line and not line.startswith(b"#")]
        if not tokens or any(len(token.split()) > 1 for token in tokens):
            raise ConfigError("expected a token on each line")
        if result.st_nlink and result.st_mode & 0o004:  # a file without a name (in memory) cannot be opened by others
            log.warning("%s=%s: every user of this machine may read it; chmod o-r prevents that", self.flag, self._path)
        if self._state is not None:
            log.info("%s=%s: read again", self.flag, self._path)
        self._tokens, self._state = tuple(tokens), state

    def _fault(self, error: Exception) -> str:
        what = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        return f"{self.flag}={self._path}: {what}"
