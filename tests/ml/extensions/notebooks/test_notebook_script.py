"""Notebooks as scripts: their code runs on ranks without a kernel."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.training.stage.program import Program
from tests.ml.extensions.notebooks.test_notebook import write_notebook


def run(path: Path, **params: Any) -> Any:
    context: Any = SimpleNamespace(params=params)
    return Program(script=str(path), arguments=("--fast",)).run(context, path.parent)


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
    assert run(path, lr=5) == {"x": 50, "arguments": ["--fast"]}
    assert "train.ipynb, cell 3: %matplotlib inline is left out" in caplog.text
    assert sys.modules["__main__"] is main and str(tmp_path) not in sys.path


def test_traceback_names_notebook_cell_and_line(tmp_path: Path) -> None:
    path = write_notebook(tmp_path / "train.ipynb", "def half(n):\n    return n / 0", "model = half(3)")
    with pytest.raises(ZeroDivisionError) as raised:
        run(path)
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
        run(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("end", ["import sys\nsys.exit(0)", "exit()", "quit()"])
@pytest.mark.parametrize("name", ["train.py", "train.ipynb"])
def test_model_of_a_script_that_exits_itself_is_published(tmp_path: Path, name: str, end: str) -> None:
    source = f"def main():\n    {end.replace(chr(10), '; ')}\nmodel = 'trained'\nmain()"
    if name.endswith(".py"):
        (tmp_path / name).write_text(source)
    else:
        write_notebook(tmp_path / name, source, "model = 'never'")
    assert run(tmp_path / name) == "trained"
    (tmp_path / "fails.py").write_text("model = exit(2)")
    with pytest.raises(BadInput, match=r"ended itself by sys.exit\(2\)"):
        run(tmp_path / "fails.py")
