"""Options of request capture."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CaptureMode = Literal["none", "inputs", "predictions", "all"]

_LARGEST_SEGMENT_BYTES = 16 * 2**20
_SMALLEST_SEGMENT_BYTES = 16 * 2**10
_LARGEST_BATCH_BYTES = 128 * 2**20


@dataclass(frozen=True)
class CaptureOptions:
    """Options of the capture: requests, place, and the age and size at which files are closed.

    Attributes:
        base_path: Folder or fsspec URL with one folder per model; if empty, nothing is captured.
        mode: Whether to write the columns ``input.*``, ``output.*`` or both.
        sampling_percent: Percentage of requests to capture, 0 to 100.
        spool_path: Local folder for records that are not written yet; if empty, a folder beside a local base path, or
            in the user's state folder.
        spool_bytes: Maximum size of the spool on disk; further records are dropped and counted.
        roll_rows: Number of rows after which a file is closed.
        roll_seconds: Seconds after which a file with any rows is closed.
    """

    base_path: str = ""
    mode: CaptureMode = "all"
    sampling_percent: float = 100.0
    spool_path: str = ""
    spool_bytes: int = 2**30
    roll_rows: int = 100_000
    roll_seconds: float = 60.0

    @property
    def enabled(self) -> bool:
        """Whether any request is captured."""
        return bool(self.base_path) and self.mode != "none" and self.sampling_percent > 0

    @property
    def is_local(self) -> bool:
        """Whether the base path is a local folder."""
        return bool(self.base_path) and "://" not in self.base_path

    @property
    def spool_root(self) -> Path:
        """Folder of the spools, one per server that was started with this base path."""
        if self.spool_path:
            return Path(self.spool_path).absolute()
        if self.is_local:
            return Path(self.base_path) / ".spool"
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        name = hashlib.sha256(self.base_path.encode()).hexdigest()[:16]
        return state / "airflow-hops" / "capture" / name

    @property
    def segment_bytes(self) -> int:
        """Size of one file of the spool."""
        return min(_LARGEST_SEGMENT_BYTES, max(_SMALLEST_SEGMENT_BYTES, self.spool_bytes // 8))

    @property
    def batch_bytes(self) -> int:
        """Size of waiting records at which they are written, regardless of their age."""
        return min(_LARGEST_BATCH_BYTES, self.spool_bytes // 2)
