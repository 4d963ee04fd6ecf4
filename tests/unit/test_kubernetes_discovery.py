"""What a job becomes on what a cluster offers."""

from __future__ import annotations

from typing import Any

import pytest

from kfnb.backends.kubernetes.access import Access
from kfnb.backends.kubernetes.discovery import Offer, choose
from kfnb.backends.kubernetes.target import Runtime, Target
from kfnb.errors import BackendError, UsageError
from kfnb.spec import TrainSpec

HERE = Access("config", "context", "team-a")
STOCK = Runtime("torch-distributed", "ClusterTrainingRuntime", "torch")
OURS = Runtime("notebook-torch", "ClusterTrainingRuntime", "torch", ours=True)
OLD = Runtime("old-torch", "ClusterTrainingRuntime", "torch", deprecated=True)
JAX = Runtime("jax-distributed", "ClusterTrainingRuntime", "jax")
OWN = Runtime("torch-distributed", "TrainingRuntime", "torch")


def chosen(offer: Offer, **options: Any) -> Target:
    return choose(TrainSpec(**options), offer, HERE)


def test_the_best_kind_that_is_served() -> None:
    assert chosen(Offer(("trainjob", "pytorchjob", "job"), (STOCK,))).kind == "trainjob"
    assert chosen(Offer(("pytorchjob", "job"))).kind == "pytorchjob"
    assert chosen(Offer(("job",))).kind == "job"


def test_without_a_runtime_that_fits_a_trainjob_is_none() -> None:
    assert chosen(Offer(("trainjob", "job"), (JAX, OLD))).kind == "job"
    with pytest.raises(BackendError, match="jax-distributed, old-torch"):
        chosen(Offer(("trainjob", "job"), (JAX, OLD)), kind="trainjob")


def test_a_runtime_for_notebooks_comes_first_and_then_the_namespaces_own() -> None:
    kinds: Any = ("trainjob", "job")
    assert chosen(Offer(kinds, (OLD, STOCK, OURS))).runtime is OURS
    assert chosen(Offer(kinds, (OWN, STOCK))).runtime is OWN


def test_a_named_runtime_is_taken_and_one_that_is_not_there_is_said_with_those_that_are() -> None:
    offer = Offer(("trainjob", "job"), (STOCK, OLD))
    assert chosen(offer, runtime="old-torch").runtime is OLD
    with pytest.raises(UsageError, match="There are old-torch, torch-distributed"):
        chosen(offer, runtime="other")
    with pytest.raises(UsageError, match="does not have"):
        chosen(Offer(("job",)), runtime="other")


def test_a_kind_that_is_not_served_is_said_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="It offers job, or auto"):
        chosen(Offer(("job",)), kind="pytorchjob")


def test_an_image_is_the_users_else_the_runtimes_else_one_that_has_the_framework() -> None:
    with_runtime = Offer(("trainjob", "job"), (STOCK,))
    assert chosen(with_runtime).image is None
    assert chosen(with_runtime, image="mine:1").image == "mine:1"
    assert "pytorch" in (chosen(with_runtime, kind="job").image or "")
    assert (chosen(Offer(("job",)), framework="python").image or "").startswith("python:3.")


def test_a_copied_value_needs_a_secret() -> None:
    with pytest.raises(BackendError, match="You may not make Secrets in team-a"):
        chosen(Offer(("job",), secrets=False), env="TOKEN")
    assert not chosen(Offer(("job",), secrets=False)).secrets
