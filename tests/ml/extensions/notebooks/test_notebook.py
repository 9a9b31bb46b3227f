"""Notebooks as steps, with real kernels, and as scripts of ranks, without one."""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from waiting import is_gone, wait_for

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.extensions.notebooks.core import NotebookProperties
from airflow_hops.extensions.notebooks.ml import stage
from airflow_hops.ml.step.source import inject_parameters, read_notebook
from airflow_hops.ml.training.stage.program import run_program


def write_notebook(path: Path, *sources: str, parameters: str | None = None) -> Path:
    """Writes a notebook with these code cells, behind a cell tagged ``parameters``."""
    cells = [new_markdown_cell("# A notebook")]
    if parameters is not None:
        cells.append(new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    nbformat.write(new_notebook(cells=[*cells, *map(new_code_cell, sources)]), path)
    return path


def sources_of(store: ArtifactStore, artifact: Artifact) -> list[Any]:
    cells = nbformat.read(store.local(artifact) / "notebook.ipynb", as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


@pytest.mark.slow
def test_notebook_gets_its_parameters_and_inputs_and_is_published_as_executed(
    tmp_path: Path, store: ArtifactStore, run_stage: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """One notebook of what a good one does: parameters, inputs, output in the log, the artifact, a value."""
    with store.create(store.uri("dag", "run", "task", "rows"), "rows", Producer()) as writer:
        (writer.path / "rows.txt").write_text("three\n")
        rows = writer.commit()
    path = write_notebook(
        tmp_path / "explore.ipynb",
        "from airflow_hops.extensions.notebooks import pipeline\n"
        "print(f'{rate=} {tags=}', flush=True)\nprint('half', end='')",
        "import os\nprint(sorted(n for n in os.environ if n.startswith('HOPS_')), pipeline.store().storage_options)",
        "print((pipeline.path('rows') / 'rows.txt').read_text(), os.getcwd())",
        "pipeline.result({'auc': 0.75})\nprint(f'{password=}')\nassert len(password) == 7",
        parameters="rate = 0.1\ntags: list = []\npassword = ''",
    )
    params = {"tags": ["a", None], "rate": 1.5, "password": "hunter2"}
    artifact = run_stage(stage.run, kind="notebook", inputs={"rows": rows}, notebook=str(path), params=params)
    printed = capfd.readouterr().out
    assert "rate=1.5 tags=['a', None]\nhalf\n" in printed and "cell 3 of 6" in printed
    assert (
        f"three\n {tmp_path}\n" in printed and "[] {}" in printed
    )  # its credentials are in no variable that a cell sees
    properties = NotebookProperties.of(artifact)
    assert (properties.result, properties.failed_cell, properties.error) == ({"auc": 0.75}, None, None)
    assert artifact.metrics["cells"] == 6
    cells = sources_of(store, artifact)
    assert [cell.execution_count for cell in cells] == [1, 2, 3, 4, 5, 6]
    assert cells[1].metadata.tags == ["injected-parameters"]
    assert properties.parameters == {**params, "password": "***"}
    assert not any(b"hunter2" in file.read_bytes() for file in store.local(artifact).iterdir())
    assert cells[-1].outputs[-1].text == "password='***'\n"
    page = (store.local(artifact) / "notebook.html").read_text()
    assert "rate=1.5" in page and "<script" not in page and "http" not in page
    assert store.manifest(artifact.uri).inputs["rows"][0].fingerprint == rows.fingerprint


@pytest.mark.slow
def test_failing_cell_is_quoted_and_its_notebook_stored(tmp_path: Path, store: ArtifactStore, run_stage: Any) -> None:
    path = write_notebook(
        tmp_path / "fails.ipynb",
        f"import os\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))",
        "from airflow_hops.extensions.notebooks import pipeline\n"
        "print('x' * (5 << 20))\nprint('not kept')\npipeline.result('kept')",
        "print('kept again')\ndef divide(n):\n    return n / 0\n\ndivide(7)",
        "print('never')",
    )
    with pytest.raises(HopsError) as raised:
        run_stage(stage.run, kind="notebook", run_id="r", task_id="t", notebook=str(path))
    text = str(raised.value)
    assert "fails.ipynb: cell 3 failed with ZeroDivisionError" in text and "return n / 0" in text
    assert "\x1b" not in text and raised.value.retryable
    uri = store.uri("tests", "r", "t", "notebook")
    artifact = store.manifest(uri).reference(uri)
    properties = NotebookProperties.of(artifact)
    assert (properties.failed_cell, properties.cut_cells, artifact.metrics["cells"]) == (3, (2,), 3)
    assert properties.result == "kept"
    cells = sources_of(store, artifact)
    assert cells[2].outputs[0].text == "kept again\n"
    assert "Output was cut here: 4 MiB" in cells[1].outputs[-1].text and cells[3].outputs == []
    assert sum(len(output.text) for output in cells[1].outputs) < 5 << 20
    page = (store.local(artifact) / "notebook.html").read_text()
    assert f'href="#cell-id={cells[2].id}">Cell 3 failed' in page and f'id="cell-id={cells[2].id}"' in page
    wait_for(lambda: is_gone(int((tmp_path / "pid").read_text())), "the kernel has ended")


@pytest.mark.slow
def test_outputs_are_complete_and_current_ones_count_against_the_limit(
    tmp_path: Path, store: ArtifactStore, run_stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More outputs than ZeroMQ holds back (1,000); a notebook without IDs, in a long temporary path, with no page."""
    path = write_notebook(
        tmp_path / "live.ipynb",
        "from IPython.display import HTML, clear_output, display\n"
        "from airflow_hops.extensions.notebooks import pipeline\n"
        "for i in range(2500): display(i)\npipeline.result('first')",
        "for i in range(12):\n    clear_output(wait=True)\n    display(HTML(f'frame {i}' + ' ' * 1_000_000))",
        "shown = [display(i, display_id=True) for i in range(6)]\n"
        "for each in shown:\n    for _ in range(3): each.update(HTML('z' * 1_000_000))",
        "pipeline.result('last')\nclear_output()\ndisplay({'text/html': 5}, raw=True)\n"
        "display({'image/png': 'x'}, metadata={'image/png': 5}, raw=True)",
        "raise ValueError('y' * 5_000_000)",
    )
    written = json.loads(path.read_text())
    written["nbformat_minor"] = 4
    for cell in written["cells"]:
        del cell["id"]
    path.write_text(json.dumps(written))
    (tmp_path / ("t" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("t" * 100)))
    with pytest.raises(HopsError, match="cell 5 failed with ValueError: yyy"):
        run_stage(stage.run, kind="notebook", run_id="r", task_id="t", notebook=str(path))
    uri = store.uri("tests", "r", "t", "notebook")
    artifact = store.manifest(uri).reference(uri)
    properties = NotebookProperties.of(artifact)
    assert (properties.result, properties.failed_cell, properties.cut_cells) == ("last", 5, (3,))
    many, live, updated, _, failed = sources_of(store, artifact)
    assert len(many.outputs) == 2501
    assert [output.data["text/html"].rstrip() for output in live.outputs] == ["frame 11"]
    assert sum(len(output.data.get("text/html", "")) for output in updated.outputs[:-1]) == 4_000_000
    assert len(json.dumps(failed.outputs)) < 1 << 20
    page = (store.local(artifact) / "notebook.html").read_text()
    assert "No page can be made" in page


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "import time\ntry:\n    time.sleep(60)\nfinally:\n    open('ended', 'w')",
            "cell 1 took longer than cell_timeout_s=1; give it more time",
        ),
        ("import os\nos.kill(os.getpid(), 9)", "cell 1 lost its kernel, which was killed"),
        ("import os\nos.write(2, b'giving up')\nos._exit(3)", "(?s)ended with exit code 3; its last lines:.*giving up"),
    ],
)
def test_endless_cell_and_dead_kernel_are_reported(
    source: str, says: str, tmp_path: Path, store: ArtifactStore, run_stage: Any
) -> None:
    path = write_notebook(tmp_path / "ends.ipynb", source)
    with pytest.raises(HopsError, match=says):
        run_stage(stage.run, kind="notebook", run_id="r", task_id="t", notebook=str(path), cell_timeout_s=1)
    assert (tmp_path / "ended").exists() == ("took longer" in says)  # it is interrupted before it is killed
    uri = store.uri("tests", "r", "t", "notebook")
    assert "This cell" in sources_of(store, store.manifest(uri).reference(uri))[0].outputs[-1].traceback[0]


def notebook_of(*cells: Any, **metadata: Any) -> str:
    text: str = nbformat.writes(new_notebook(cells=cells, metadata=metadata))
    return text


TAGGED = {"metadata": {"tags": ["parameters"]}}
R_KERNEL = {"name": "ir", "language": "R", "display_name": "R"}
NOT_ASSIGNED = "parameter 'b' is not assigned in the cell tagged 'parameters', which assigns a"
OVERWRITING = new_code_cell("def f(rate):\n    b = 1\n    return [b for b in rate]"), new_code_cell("b = b + a\nrate: float = 1\nprint(rate)")  # fmt: skip # noqa: E501
UNUSABLE: dict[str, tuple[str, dict[str, Any], str]] = {
    "no JSON": ("no JSON", {}, "bad.ipynb: not a Jupyter notebook"),
    "cells": ('{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}', {}, "not a Jupyter notebook"),
    "nbformat": ('{"cells": [], "nbformat": 9, "nbformat_minor": 0, "metadata": {}}', {}, "not a Jupyter notebook"),
    "no code": (notebook_of(new_markdown_cell("x")), {}, "none of its 1 cells has code"),
    "language": (notebook_of(new_code_cell("1"), kernelspec=R_KERNEL), {}, "language is 'R'; expected 'python'"),
    "unknown": (notebook_of(new_code_cell("%matplotlib inline\na = 1", **TAGGED)), {"b": 2}, NOT_ASSIGNED),
    "local": (notebook_of(new_code_cell("def f():\n    b = 1\na = 1", **TAGGED)), {"b": 2}, NOT_ASSIGNED),
    "name": (notebook_of(new_code_cell("1")), {"a-b": 2}, "parameter 'a-b'"),
    "overwritten": (notebook_of(*OVERWRITING), {"a": 1, "b": 2, "rate": 3}, "cell 2 assigns 'rate', so that the par"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_notebook_is_named_as_bad_input(case: str, tmp_path: Path, run_stage: Any) -> None:
    content, params, says = UNUSABLE[case]
    (tmp_path / "bad.ipynb").write_text(content)
    with pytest.raises(BadInput, match=says):
        run_stage(stage.run, kind="notebook", notebook=str(tmp_path / "bad.ipynb"), params=params)


@pytest.mark.parametrize("is_tagged", [True, False])
@pytest.mark.parametrize(
    ("cell", "is_lost"),
    [
        ("rate = 0.5", True),
        ("other, rate = 1, 0.5\nprint(rate)", True),
        ("import json as rate", True),
        ("def rate():\n    return 1", True),
        ("for rate in (1, 2):\n    print(rate)", True),
        ("with open('x') as file:\n    rate = 0.5\n    print(rate)", True),
        ("try:\n    rate = 0.5\nexcept ValueError:\n    pass", True),
        ("rate = rate / 2", False),
        ("rate += 1\nrate = 0.5", False),
        ("if not rate:\n    rate = 0.5", False),
        ("if True:\n    rate = 0.5", False),
        ("rate: float", False),
        ("[rate for rate in (1, 2)]", False),
    ],
)
def test_cell_must_not_overwrite_an_unused_parameter(cell: str, is_lost: bool, is_tagged: bool, tmp_path: Path) -> None:
    path = write_notebook(
        tmp_path / "tuned.ipynb", "1", cell, "print(rate)", parameters="rate = 1" if is_tagged else None
    )
    notebook = read_notebook(path)
    if not is_lost:
        return inject_parameters(notebook, {"rate": 2}, path)
    number, advice = (3, "delete that assignment") if is_tagged else (2, "tag that cell 'parameters'")
    with pytest.raises(BadInput, match=f"cell {number} assigns 'rate', so that .* has no effect; {advice}"):
        inject_parameters(notebook, {"rate": 2}, path)


def test_parameters_of_an_executed_notebook_are_replaced(tmp_path: Path) -> None:
    path = write_notebook(tmp_path / "tuned.ipynb", "print(rate)")
    notebook = read_notebook(path)
    for value in (1, 2):
        inject_parameters(notebook, {"rate": value}, path)
    assert [cell.source for cell in notebook.cells if cell.cell_type == "code"] == [
        "# Parameters\nrate = 2",
        "print(rate)",
    ]


@pytest.mark.parametrize("end", ["import sys\nsys.exit(0)", "quit(0)"])
def test_notebook_exiting_with_code_0_succeeds(tmp_path: Path, store: ArtifactStore, run_stage: Any, end: str) -> None:
    path = write_notebook(tmp_path / "ends.ipynb", f"print('done')\n{end}", "raise ValueError('not to run')")
    artifact = run_stage(stage.run, kind="notebook", notebook=str(path))
    assert (NotebookProperties.of(artifact).failed_cell, artifact.metrics["cells"]) == (None, 1)
    last, never = sources_of(store, artifact)
    assert last.outputs[0].text.startswith("done\n") and never.outputs == []
    assert "ended itself here with exit code 0; 1 cells that follow did not run" in last.outputs[-1].text
    assert not any(output.output_type == "error" for output in last.outputs)


def test_notebook_exiting_with_another_code_fails(tmp_path: Path, run_stage: Any) -> None:
    with pytest.raises(HopsError, match="SystemExit: no rows"):
        run_stage(stage.run, kind="notebook", notebook=str(write_notebook(tmp_path / "ends.ipynb", "quit('no rows')")))


def run_script(path: Path, **params: Any) -> Any:
    context: Any = SimpleNamespace(params=params)
    return run_program(TrainingOptions(script=str(path), script_args=("--fast",)), context, path.parent)


def test_cells_run_in_one_namespace_as_main_with_parameters_and_without_magics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_notebook(
        tmp_path / "train.ipynb",
        "%matplotlib inline\nimport pickle, sys\nfrom beside import FACTOR",
        "class Point:\n    x = FACTOR * lr\nassert __name__ == '__main__'",
        "display(Point.x)\nmodel = {'x': pickle.loads(pickle.dumps(Point())).x, 'arguments': sys.argv[1:]}",
        parameters="%matplotlib inline\nlr = 1",
    )
    (tmp_path / "beside.py").write_text("FACTOR = 10\n")
    main = sys.modules["__main__"]
    assert run_script(path, lr=5) == {"x": 50, "arguments": ["--fast"]}
    assert "train.ipynb, cell 3: %matplotlib inline is left out" in caplog.text
    assert sys.modules["__main__"] is main and str(tmp_path) not in sys.path


def test_traceback_names_notebook_cell_and_line(tmp_path: Path) -> None:
    path = write_notebook(tmp_path / "train.ipynb", "def half(n):\n    return n / 0", "model = half(3)")
    with pytest.raises(ZeroDivisionError) as raised:
        run_script(path)
    text = "".join(traceback.format_exception(raised.value))
    assert f'File "{path}, cell 1", line 2, in half\n    return n / 0' in text and f'"{path}, cell 2", line 1' in text


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("files = !ls", r"cell 2: !ls is IPython's"),
        ("for i in range(2):\n    !rm -r data", "cell 2: !rm -r data is"),
        ("%%bash\nls", "cell 2: %%bash"),
        ("%time x = 1", "cell 2: %time x = 1 is"),
        ("x = = 1", "cell 2 does not parse"),
    ],
)
def test_ipython_syntax_is_refused_before_any_cell_runs(cell: str, says: str, tmp_path: Path) -> None:
    path = write_notebook(tmp_path / "train.ipynb", f"open({str(tmp_path / 'ran')!r}, 'w')", cell)
    with pytest.raises(BadInput, match=says):
        run_script(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("end", ["import sys\nsys.exit(0)", "exit()", "quit()"])
@pytest.mark.parametrize("name", ["train.py", "train.ipynb"])
def test_model_of_a_script_that_exits_itself_is_published(tmp_path: Path, name: str, end: str) -> None:
    source = f"def main():\n    {end.replace(chr(10), '; ')}\nmodel = 'trained'\nmain()"
    if name.endswith(".py"):
        (tmp_path / name).write_text(source)
    else:
        write_notebook(tmp_path / name, source, "model = 'never'")
    assert run_script(tmp_path / name) == "trained"
    (tmp_path / "fails.py").write_text("model = exit(2)")
    with pytest.raises(BadInput, match=r"ended itself by sys.exit\(2\)"):
        run_script(tmp_path / "fails.py")
