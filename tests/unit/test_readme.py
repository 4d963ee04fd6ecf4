"""The README says what holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from kfnb.backends.base import JobBackend
from kfnb.options import markdown_table

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_options_table_is_the_spec() -> None:
    found = re.search(r"<!-- options -->\n(.*?)\n<!-- /options -->", README, re.DOTALL)
    assert found, "README.md lacks its <!-- options --> markers"
    assert found[1] == markdown_table().strip(), "run: python -m kfnb.options --markdown"


def test_every_method_of_a_backend_is_explained() -> None:
    section = README.partition("## Writing a backend")[2]
    methods = {name for name, value in vars(JobBackend).items() if not name.startswith("_") and callable(value)}
    assert methods
    assert {name for name in methods if f"`{name}(" not in section} == set()


def test_python_examples_parse() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        ast.parse("\n".join(line for line in block.splitlines() if not line.startswith("%")))
