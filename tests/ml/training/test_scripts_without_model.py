"""Scripts whose model nobody could find end before they train."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.ml.training.stage.program import run_program

# How Horovod's, PyTorch's and Keras's own examples end, and their mends.
IN_MAIN = "def main():\n    model = 1\n    return model\n"
SCRIPTS = {
    "the model of main() is dropped": (IN_MAIN + "if __name__ == '__main__':\n    main()\n", None),
    "another name": (IN_MAIN + "mnist_model = main()\n", None),
    "a local of a class": ("class Net:\n    model = 1\nNet()\n", None),
    "nothing": ("print(0)\n", None),
    "main's value is kept": (IN_MAIN + "if __name__ == '__main__':\n    model = main()\n", 1),
    "at the top": ("import json\nmodel = 1\n", 1),
    "declared global": ("def main():\n    global model\n    model = 1\nmain()\n", 1),
    "a loop": ("for model in (0, 1):\n    pass\n", 1),
    "imported": ("from own_models import model\n", 1),
    "written by a module of the user": ("import own_models\n", None),
    "written by itself": ("import os\nos.environ.get('HOPS_OUTPUT')\n", None),
}
REFUSED = list(SCRIPTS)[:4]


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_that_cannot_make_a_model_does_not_run(name: str, tmp_path: Path) -> None:
    source, model = SCRIPTS[name]
    (tmp_path / "own_models.py").write_text("model = 1\n")
    (tmp_path / "train.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{source}")
    context: Any = SimpleNamespace(params={})
    options = TrainingOptions(script=str(tmp_path / "train.py"))
    if name in REFUSED:
        with pytest.raises(BadInput, match=r"'.*train\.py' would make no model: .* call it as model = main\(\)"):
            run_program(options, context, tmp_path)
    else:
        assert run_program(options, context, tmp_path) == model
    assert (tmp_path / "ran").exists() == (name not in REFUSED)
