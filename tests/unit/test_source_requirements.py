"""Requirements files travel with the job: their lines are read when it is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfnb.errors import SourceError
from kfnb.source.requirements import requirement_lines


def test_a_file_stands_for_its_lines(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "requirements.txt").write_text(
        "\ufeff# what we need\nnumpy>=1,<2  # not 2\n\n-r more/base.txt\n"
        "locked==1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        "pkg @ https://example.invalid/a.zip#egg=pkg\n-c more/limits.txt\n"
    )
    (tmp_path / "more" / "base.txt").write_text("einops\nnumpy>=1,<2\n")
    lines = requirement_lines(["requirements.txt", "tqdm", " "], tmp_path)
    assert lines == (
        "numpy>=1,<2",
        "einops",
        "locked==1     --hash=sha256:aa     --hash=sha256:bb",
        "pkg @ https://example.invalid/a.zip#egg=pkg",
        f"-c {tmp_path}/more/limits.txt",
        "tqdm",
    )


@pytest.mark.parametrize("item", ["reqs.txt", "./reqs.txt", "-r reqs.txt", "-rreqs.txt", "--requirement=reqs.txt"])
def test_every_way_to_name_it(tmp_path: Path, item: str) -> None:
    (tmp_path / "reqs.txt").write_text("einops\n")
    assert requirement_lines([item], tmp_path) == ("einops",)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nowhere\.txt cannot be read"):
        requirement_lines(["nowhere.txt"], tmp_path)


def test_a_file_that_includes_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-r b.txt\n")
    (tmp_path / "b.txt").write_text("-r a.txt\n")
    with pytest.raises(SourceError, match="includes itself"):
        requirement_lines(["a.txt"], tmp_path)
