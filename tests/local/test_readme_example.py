"""The README's examples are run as they stand there, as the cells of one notebook."""

from __future__ import annotations

import re
from pathlib import Path

import nbclient
import pytest
from nbformat.v4 import new_code_cell, new_notebook

README = Path(__file__).resolve().parents[2] / "README.md"
SCRIPT = """\
import kfnb_worker as kf

for step in range(3):
    if kf.rank() == 0:
        kf.log(step, loss=1 / (step + 1))
accuracy = 0.5
"""


@pytest.mark.timeout(400)
def test_examples_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    notebook = new_notebook(cells=[new_code_cell(block.rstrip()) for block in blocks])
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    shown = [
        "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)
        for cell in notebook.cells
    ]
    (accuracy,) = (text for text, block in zip(shown, blocks, strict=True) if block.strip() == "accuracy")
    assert 0.1 < float(accuracy) <= 1
    phase, result, loss = shown[-1].strip().splitlines()[-3:]
    assert phase == "Succeeded"
    assert result == "{'accuracy': 0.5}"
    assert [float(number) for number in re.findall(r"[\d.]*\d", loss)] == pytest.approx([1, 1 / 2, 1 / 3], abs=1e-6)
