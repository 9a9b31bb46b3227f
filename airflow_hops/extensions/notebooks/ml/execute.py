"""Executes a notebook in a kernel, with bounded live outputs, and explains failures."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert.filters import strip_ansi
from nbformat.v4 import new_output

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.temporary_folders import socket_root, temporary_folder
from airflow_hops.extensions.notebooks.core import kernel_command
from airflow_hops.extensions.notebooks.ml.session import RESULT_MIME
from airflow_hops.ml.step.source import code_cells
from airflow_hops.ml.training.gang.supervisor import count_oom_kills

_SHOWN_LINES = 5

log = logging.getLogger(__name__)

MAX_CELL_BYTES = 4 << 20
"""Maximum stored output of a cell."""
MAX_NOTEBOOK_BYTES = 32 << 20
"""Maximum stored output of all cells."""

_SIGN_OF_LIFE_S = 30.0
_START_TIMEOUT_S = 600  # nbclient counts by the clock, on a busy machine, too
_INTERRUPT_S = 5.0
_LAST_LINES = 10
_TRACEBACK_CHARACTERS = 6000
_ERROR_CHARACTERS = 20_000
_TRACEBACK_FRAMES = 50
_OUTPUT_BYTES = 100
"""Size of an output without its content."""
_IDLE_TIMEOUT_S = 600
"""Time limit for the last outputs of a finished cell."""
_NO_IDLE = "IOPub"
"""Part of nbclient's message about a cell whose last output has not arrived."""
_ENDS_WELL = [("SystemExit", code) for code in ("", "0", "None", "False")]
"""Errors that end a notebook successfully, like a program with exit code 0; papermill treats them alike."""
Progress = Callable[[float, str], None]


@dataclass
class Execution:
    """Result of a notebook; its outputs are in the notebook.

    Attributes:
        cells: Number of cells that ran.
        seconds: Their duration.
        cut_cells: Numbers of cells whose output was cut.
        failed_cell: Number of the failed cell, if any.
        failure: Its error, if any.
        result: The value of ``pipeline.result``, if any.
    """

    cells: int = 0
    seconds: float = 0.0
    cut_cells: list[int] = field(default_factory=list)
    failed_cell: int | None = None
    failure: HopsError | None = None
    result: Any = None


def execute(
    notebook: nbformat.NotebookNode,
    path: Path,
    *,
    env: Mapping[str, str],
    progress: Progress,
    cell_timeout_s: float | None = None,
) -> Execution:
    """Runs the cells in a kernel of this Python until one fails.

    Args:
        notebook: The notebook, which gets the outputs.
        path: Its file; the kernel works in the file's folder.
        env: The kernel's environment.
        progress: Called with the share of finished cells, and a message.
        cell_timeout_s: Time limit per cell; None for none.
    """
    for cell in notebook.cells:
        if cell.cell_type == "code":  # outputs of an earlier execution
            cell.outputs, cell.execution_count = [], None
    with temporary_folder("kernel", root=socket_root(len("/hops-kernel-12345678.locked/k-5"))) as folder:
        return asyncio.run(_execute(notebook, path, folder, env, progress, cell_timeout_s))


class _KernelManager(AsyncKernelManager):
    """Starts a kernel by its command line, so that no kernelspec needs to be installed."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(argv=kernel_command(sys.executable), display_name="airflow-hops", language="python")

    def client(self, **options: object) -> AsyncKernelClient:
        client = super().client(**options)
        client.context.rcvhwm = 0  # else ZeroMQ drops outputs that arrive faster than they are read
        return client


class _Client(NotebookClient):
    """Limits outputs, and writes text to the log as it arrives."""

    number = 0
    _told = 0
    _line = ""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self._held: dict[int, int] = defaultdict(int)  # bytes, by position of the cell

    def begin(self, number: int, execution: Execution) -> None:
        self.number, self.execution = number, execution

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] not in ("stream", "display_data", "execute_result", "update_display_data", "error"):
            return super().process_message(msg, cell, cell_index)
        if RESULT_MIME in msg["content"].get("data", {}):  # even if the output is cut, or cleared later
            self.execution.result = msg["content"]["data"][RESULT_MIME]
        if self.clear_before_next_output and msg["msg_type"] != "update_display_data":
            self._clear(cell.outputs, cell_index)
        if msg["msg_type"] == "error":
            # Beyond the limits only the last error is stored, since it may be the cell's failure
            content = msg["content"]
            content["evalue"] = _shortened(content["evalue"])
            trace = list(map(_shortened, content["traceback"]))
            if len(trace) > _TRACEBACK_FRAMES:
                trace = [*trace[: _TRACEBACK_FRAMES // 2], "…", *trace[-_TRACEBACK_FRAMES // 2 :]]
            content["traceback"] = trace
            size = len(json.dumps(content))
            last = cell.outputs[-1] if cell.outputs else {}
            if size > self._left(cell_index) and last.get("output_type") == "error":
                self._cut("error", size)
                last.update(ename=content["ename"], evalue=content["evalue"], traceback=trace)
                return None
            self._held[cell_index] += size
            return super().process_message(msg, cell, cell_index)
        if not self._fits(msg, cell_index):
            return None
        if msg["msg_type"] == "stream":
            text, name = msg["content"]["text"], msg["content"]["name"]
            self._print(text)
            if cell.outputs and cell.outputs[-1].get("name") == name:
                cell.outputs[-1].text += text
                return None
        try:
            return super().process_message(msg, cell, cell_index)
        except nbformat.ValidationError as error:
            message = f"An output is left out, since it is not valid: {error.message[:300]}\n"
            log.warning("cell %d: %s", self.number, message.rstrip())
            cell.outputs.append(new_output("stream", name="stderr", text=message))
            return None

    def _fits(self, msg: dict[str, Any], position: int) -> bool:
        """Counts the size of a message and shortens text to the limit; returns False if nothing is stored."""
        kind, content = msg["msg_type"], msg["content"]
        if kind == "stream":
            growth = {position: len(content["text"].encode("utf-8", "replace"))}
        else:  # an output with a display ID replaces earlier ones
            display_id = (content.get("transient") or {}).get("display_id")
            size, growth = _size(content), defaultdict[int, int](int)
            for cell, indices in self._display_id_map.get(display_id, {}).items():
                outputs = self.nb.cells[cell].outputs
                growth[cell] += sum(size - _size(outputs[index]) for index in indices)
            if kind != "update_display_data":
                growth[position] += size
        left, size = self._left(position), sum(growth.values())
        if size > left or any(more > self._left(each) for each, more in growth.items()):
            self._cut(kind, size)
            if kind != "stream" or not left:
                return False
            content["text"] = content["text"].encode("utf-8", "replace")[:left].decode("utf-8", "ignore")
            growth = {position: left}
        for each, more in growth.items():
            self._held[each] += more
        return True

    def _left(self, position: int) -> int:
        """Returns how many more bytes a cell may store."""
        return max(0, min(MAX_NOTEBOOK_BYTES - sum(self._held.values()), MAX_CELL_BYTES - self._held[position]))

    def clear_output(self, outs: object, msg: dict[str, object], cell_index: int) -> None:
        super().clear_output(outs, msg, cell_index)
        if not outs:
            self._clear(outs, cell_index)

    def _clear(self, outputs: Any, position: int) -> None:
        outputs[:] = []
        self.clear_display_id_mapping(position)
        self.clear_before_next_output = False
        self._held[position] = 0
        if self.number in self.execution.cut_cells:  # the cut output would have been cleared, too
            self.execution.cut_cells.remove(self.number)

    def end(self, cell: nbformat.NotebookNode) -> None:
        """Ends the log's last line, reduces progress bars to their last state, and marks cut output."""
        if self._line:
            self._print("\n")
        for output in cell.outputs:
            if output.output_type == "stream" and "\r" in output.text:
                output.text = "\n".join(map(_last_state, output.text.split("\n")))
        if self.number in self.execution.cut_cells:
            retained = f"{MAX_CELL_BYTES >> 20} MiB of a cell are kept, {MAX_NOTEBOOK_BYTES >> 20} MiB of a notebook"
            cell.outputs.append(new_output("stream", name="stderr", text=f"\nOutput was cut here: {retained}.\n"))

    def _cut(self, kind: str, size: int) -> None:
        if self.number not in self.execution.cut_cells:
            self.execution.cut_cells.append(self.number)
        if self._told != self.number:
            self._told = self.number
            log.warning(
                "cell %d: its output is cut (%s of %d bytes): the limits are %d MiB for a cell and %d MiB for a "
                "notebook",
                *(self.number, kind, size, MAX_CELL_BYTES >> 20, MAX_NOTEBOOK_BYTES >> 20),
            )

    def _print(self, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            print(_last_state(line), flush=True)


def _last_state(line: str) -> str:
    """Returns a line as a terminal shows it in the end."""
    return line.rstrip("\r").rpartition("\r")[2]


def _size(output: Mapping[str, object]) -> int:
    """Returns the bytes of a displayed output in the notebook's file."""
    shown = json.dumps([output["data"], output["metadata"]], ensure_ascii=False)
    return _OUTPUT_BYTES + len(shown.encode("utf-8", "replace"))


def _shortened(text: str) -> str:
    """Cuts the middle out of a long error text."""
    left_out = len(text) - _ERROR_CHARACTERS
    if left_out <= 0:
        return text
    half = _ERROR_CHARACTERS // 2
    return f"{text[:half]}… ({left_out:,} characters are left out) …{text[-half:]}"


async def _execute(
    notebook: nbformat.NotebookNode,
    path: Path,
    folder: Path,
    env: Mapping[str, str],
    progress: Progress,
    cell_timeout_s: float | None,
) -> Execution:
    execution, began = Execution(), time.monotonic()
    # Unix sockets in a private folder: with a port, other users of this machine could read the cells' output.
    manager = _KernelManager(transport="ipc", ip=str(folder / "k"), connection_file=str(folder / "kernel.json"))
    options = {"store_widget_state": False, "startup_timeout": _START_TIMEOUT_S}
    options |= {"iopub_timeout": _IDLE_TIMEOUT_S, "raise_on_iopub_timeout": True}
    client = _Client(notebook, km=manager, timeout=cell_timeout_s and max(1, round(cell_timeout_s)), **options)
    oom_kills, log_path = count_oom_kills(), folder / "kernel.log"
    try:
        try:
            with log_path.open("wb") as stream:  # the kernel's own output; cells print through Jupyter's channel
                await client.async_start_new_kernel(
                    cwd=str(path.parent),
                    env={**env, "IPYTHONDIR": str(folder / "ipython")},
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                )
            await client.async_start_new_kernel_client()
        except Exception as error:
            execution.failure = HopsError(
                f"{path}: its kernel, {sys.executable}, did not start ({error}){_last_lines(log_path)}"
            )
            return execution
        cells = list(code_cells(notebook))
        for number, cell in cells:
            done, title = (number - 1) / len(cells), f"cell {number} of {len(cells)}"
            progress(done, f"{title}: {_title_of(cell.source)}")
            client.begin(number, execution)
            try:
                started = time.monotonic()
                index = next(index for index, each in enumerate(notebook.cells) if each is cell)
                running = asyncio.ensure_future(client.async_execute_cell(cell, index))
                while not (await asyncio.wait({running}, timeout=_SIGN_OF_LIFE_S))[0]:
                    progress(done, f"{title} has run for {round(time.monotonic() - started)} s")
                await running
            except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
                if isinstance(error, CellExecutionError) and (error.ename, error.evalue) in _ENDS_WELL:
                    # A note replaces IPython's output for ``sys.exit(0)``, which looks like an error.
                    note = f"The notebook ended itself here with exit code 0; {len(cells) - number} cells that follow "
                    log.info("cell %d: %sdid not run.", number, note)
                    cell.outputs[:] = [output for output in cell.outputs if output.output_type != "error"]
                    cell.outputs.append(new_output("stream", name="stdout", text=f"{note}did not run.\n"))
                    break
                execution.failed_cell = number
                if isinstance(error, CellTimeoutError):
                    # Lets the cell clean up before the kernel is killed: an experiment records its end.
                    await manager.interrupt_kernel()
                    with suppress(Empty):
                        await client.kc.get_shell_msg(timeout=_INTERRUPT_S)
                reason = await _explain(error, manager, cell_timeout_s, oom_kills, log_path)
                execution.failure = _failure(cell, reason, f"{path}: cell {number}")
                break
            finally:
                client.end(cell)
                execution.cells = number
    finally:
        execution.seconds = round(time.monotonic() - began, 3)
        if manager.has_kernel:
            await manager.shutdown_kernel(now=True)
        if client.kc is not None:
            client.kc.stop_channels()
    return execution


async def _explain(
    error: Exception, manager: AsyncKernelManager, cell_timeout_s: float | None, oom_kills: int, log_path: Path
) -> str | None:
    """Returns why a cell was ended; None if it raised an exception, which its output shows."""
    if isinstance(error, CellExecutionError):
        return None
    if isinstance(error, CellTimeoutError) and _NO_IDLE in str(error):
        return f"has ended, but its outputs have not arrived within {_IDLE_TIMEOUT_S} s; let it print or display less"
    if isinstance(error, CellTimeoutError):
        return f"took longer than cell_timeout_s={cell_timeout_s:g}; give it more time, or less to do"
    code = await manager.provisioner.poll() if manager.provisioner is not None else None
    if code == -9:
        struck = count_oom_kills() > oom_kills
        why = "by the machine's out-of-memory killer" if struck else "by a person, or by a memory limit"
        return f"lost its kernel, which was killed ({why}); give it less data, or the machine more memory"
    how = "exit code" if code is None or code >= 0 else "signal"
    return f"lost its kernel, which ended with {how} {'unknown' if code is None else abs(code)}{_last_lines(log_path)}"


def _last_lines(log_path: Path) -> str:
    lines = log_path.read_text(errors="replace").splitlines()[-_LAST_LINES:] if log_path.exists() else []
    return "".join(["; its last lines:", *(f"\n  {line[:300]}" for line in lines)]) if lines else ""


def _failure(cell: nbformat.NotebookNode, reason: str | None, where: str) -> HopsError:
    """Returns the task's error; adds it to the cell's outputs if they do not show it."""
    error = next((output for output in reversed(cell.outputs) if output.output_type == "error"), None)
    if reason is not None or error is None:
        reason = reason or "failed without saying why"
        cell.outputs.append(new_output("error", ename="Ended", evalue=reason, traceback=[f"This cell {reason}."]))
        return HopsError(f"{where} {reason}; it begins with\n{_first_lines(cell.source)}")
    trace = strip_ansi("\n".join(error.traceback)) or error.ename
    if len(trace) > _TRACEBACK_CHARACTERS:
        trace = f"…{trace[-_TRACEBACK_CHARACTERS:]}"
    failure = BadInput if error.ename == BadInput.__name__ else HopsError
    name = f"{error.ename}: {strip_ansi(error.evalue)[:200]}"
    return failure(f"{where} failed with {name}; it begins with\n{_first_lines(cell.source)}\n{trace}")


def _first_lines(source: str) -> str:
    """Returns the first lines of a cell, indented, for a message."""
    lines = source.strip().splitlines()
    shown = lines[:_SHOWN_LINES] + ["…"] * (len(lines) > _SHOWN_LINES)
    return "\n".join(f"    {line}" for line in shown)


def _title_of(source: str) -> str:
    """Returns the first line of code of a cell, for the log."""
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith(("#", "%"))), lines[0])[:80]
