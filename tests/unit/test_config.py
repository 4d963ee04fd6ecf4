"""Layers of configuration: who wins, where a value comes from, and what a stranger's file may not do unasked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kfnb import config
from kfnb.errors import ConfigError, UsageError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project" / "deep"
    folder.mkdir(parents=True)
    return folder


def test_each_layer_wins_over_the_one_below(project: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    (home / "kfnb.toml").write_text("nodes = 2\nretries = 2\nprecision = 'bf16'\ntimeout = '1h'\n")
    (project.parent / "kfnb.toml").write_text("nodes = 3\nretries = 3\nprocs-per-node = 2\n")
    monkeypatch.setenv("KFNB_NODES", "4")
    spec = config.resolve({"name": "x"}, project)
    assert (spec.nodes, spec.retries, spec.procs, spec.precision, spec.timeout) == (4, 3, 2, "bf16", 3600)
    assert config.resolve({"nodes": "5"}, project).nodes == 5


def test_where_a_value_comes_from_is_said(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "pyproject.toml").write_text("[tool.kfnb]\nretries = 1\n")
    monkeypatch.setenv("KFNB_NODES", "4")
    held = config.settings({"gpus": 1}, project)
    assert held["retries"].source == str(project / "pyproject.toml")
    assert held["nodes"].source == "KFNB_NODES"
    assert held["gpus"].source == "given"
    assert held["timeout"].source == "default"


def test_lists_from_the_environment_are_lines(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFNB_ENV", "A=1 2\nB=3,4")
    monkeypatch.setenv("KFNB_USE", "lr,epochs")
    spec = config.resolve({}, project)
    assert spec.env_values == {"A": "1 2", "B": "3,4"}
    assert spec.use == ("lr", "epochs")


def test_a_jobs_own_variables_are_no_defaults_for_another(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFNB_JOB", "outer-abcde")
    monkeypatch.setenv("KFNB_LOGDIR", "/outer/logdir")
    assert config.resolve({}, project).logdir is None


def test_an_unknown_option_in_a_file_is_named(project: Path) -> None:
    (project / "kfnb.toml").write_text("node = 3\n")
    with pytest.raises(ConfigError, match="unknown options: node"):
        config.resolve({}, project)


def test_a_broken_file_is_named(project: Path) -> None:
    (project / "kfnb.toml").write_text("nodes = = 3\n")
    with pytest.raises(ConfigError, match=r"kfnb\.toml cannot be read"):
        config.resolve({}, project)


def test_a_strange_pyproject_further_up_does_not_matter(project: Path) -> None:
    (project.parent / "pyproject.toml").write_text("not toml at all [")
    assert config.resolve({}, project).nodes == 1


@pytest.mark.parametrize("text", ["tool = 3", "[tool]\nkfnb = 3", "[tool.other]\nx = 1"])
def test_a_pyproject_without_a_table_of_ours_says_nothing(project: Path, text: str) -> None:
    (project / "pyproject.toml").write_text(text + "\n")
    assert config.resolve({}, project).nodes == 1


def test_a_wrong_value_in_a_file_is_refused_in_the_options_words(project: Path) -> None:
    (project / "kfnb.toml").write_text("memory = 'lots'\n")
    with pytest.raises(UsageError, match=r"--memory \(from .*kfnb\.toml\): 'lots'"):
        config.resolve({}, project)


def test_a_wrong_value_in_a_variable_names_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFNB_RETRIES", "x")
    with pytest.raises(UsageError, match=r"--retries \(from KFNB_RETRIES\): 'x'"):
        config.resolve({}, project)


@pytest.mark.parametrize(
    "line",
    [
        "image = 'evil/image'",
        "backend = 'kubernetes'",
        "context = 'production'",
        "namespace = 'kube-system'",
        "runtime = 'evil'",
        "env = ['AWS_SECRET_ACCESS_KEY']",
        "env = 'TOKEN'",
        "pip = ['--index-url=elsewhere', 'torch']",
        "pip = 'pkg @ git+ssh://x'",
        "pip = ['./payload']",
        "pip = ' -r x'",
        "pip = 'requirements.txt'",
        "pip = 'payload-1.0.whl'",
        r'pip = "a\n--index-url x"',
    ],
)
def test_a_strangers_file_is_asked_about_once_per_content(project: Path, line: str) -> None:
    file = project / "kfnb.toml"
    file.write_text(line + "\n")
    with pytest.raises(ConfigError, match="has not been trusted"):
        config.resolve({}, project)
    found = config.find_project_file(project)
    assert found is not None
    config.trust(found)
    config.resolve({}, project)  # no longer asked about
    file.write_text(line + "\nnodes = 2\n")
    with pytest.raises(ConfigError, match="has not been trusted"):
        config.resolve({}, project)


def test_harmless_settings_are_not_asked_about(project: Path) -> None:
    pip = ["einops>=0.8,<1", "torch[opt-x] == 2.*", "a; python_version < '4'"]
    (project / "kfnb.toml").write_text(f"nodes = 2\nenv = {{A = 'b'}}\npip = {json.dumps(pip)}\n")
    spec = config.resolve({}, project)
    assert (spec.nodes, spec.env_values, spec.pip) == (2, {"A": "b"}, tuple(pip))
