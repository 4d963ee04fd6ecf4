"""TrainSpec: what a user can ask for. The one place that knows the options, their defaults, help texts and limits.

The options of ``%%kftrain`` and ``kfnb train``, their completion, the README's table and the panel's form are made
from the fields below (see ``kfnb.options``).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

SPEC_VERSION: Literal[1] = 1

#: Longest job name. Kubernetes objects get 63 characters, of which operators add up to 19 to "NAME-xxxxx".
NAME_LIMIT = 38

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MEMORY = re.compile(r"\d+(\.\d+)?([KMGTP]i?)?")
_CPU = re.compile(r"\d+(\.\d+)?|\d+m")


def parse_duration(value: Any) -> Any:
    """Seconds from ``90``, ``"30s"``, ``"10m"``, ``"2h"`` or ``"1d"``. Raises ``ValueError`` for anything else."""
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is no duration; write seconds, or a number with s, m, h or d (90, 30s, 10m, 2h)")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def _as_tuple(value: Any) -> Any:
    """A list option as users write it: ``a,b`` or a list (each item may itself be ``a,b``)."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        return value
    return tuple(
        part.strip()
        for item in items
        for part in (item.split(",") if isinstance(item, str) else [item])
        if not isinstance(part, str) or part.strip()
    )


def _as_lines(value: Any) -> Any:
    """A list option whose items may hold commas (environment values, requirements)."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _env_lines(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(f"{key}={text}" for key, text in value.items())
    return _as_lines(value)


def _check_env(items: tuple[str, ...]) -> tuple[str, ...]:
    for item in items:
        name = item.partition("=")[0]
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an environment variable; write NAME=VALUE, or NAME to copy yours")
        if name.startswith("KFNB_") or name in RESERVED_ENV:
            raise ValueError(f"{name} is set by kfnb for each rank and cannot be given")
    return items


def _check_identifiers(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not name.isidentifier():
            raise ValueError(f"{name!r} is no Python name; give names of notebook variables, as in lr,epochs")
    return names


def _check_memory(value: str | None) -> str | None:
    if value is not None and not _MEMORY.fullmatch(value):
        raise ValueError(f"{value!r} is no amount of memory; write 512Mi, 16Gi or 32G")
    return value


def _check_cpu(value: str | None) -> str | None:
    if value is not None and not _CPU.fullmatch(value):
        raise ValueError(f"{value!r} is no number of CPUs; write 2, 0.5 or 500m")
    return value


def _text(value: Any) -> Any:
    return f"{value:g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else value


#: What each rank gets from kfnb; see kfnb_worker.environment.
RESERVED_ENV = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
)

Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_check_identifiers)]
Words = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Lines = Annotated[tuple[str, ...], BeforeValidator(_as_lines)]
EnvLines = Annotated[tuple[str, ...], BeforeValidator(_env_lines), AfterValidator(_check_env)]
Duration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0, allow_inf_nan=False)]
Memory = Annotated[str, BeforeValidator(_text), AfterValidator(_check_memory)]
Cpu = Annotated[str, BeforeValidator(_text), AfterValidator(_check_cpu)]


def _option(help: str, metavar: str = "", **extra: Any) -> Any:
    return Field(description=help, json_schema_extra={"metavar": metavar}, **extra)


class TrainSpec(BaseModel):
    """One training job as it was asked for. Immutable; ``model_validate_json(spec.model_dump_json()) == spec``.

    Resources are a node's, never the job's total. Raises pydantic's ``ValidationError``, which ``kfnb.errors`` turns
    into the words of the option.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False)

    version: Literal[1] = SPEC_VERSION
    name: str = _option("Name of the job; its id is NAME-xxxxx", "NAME", default="train")
    nodes: int = _option(
        "Number of nodes (pods, or groups of processes on this machine)", "N", default=1, ge=1, le=4096
    )
    procs_per_node: int | Literal["auto"] = _option(
        "Ranks on each node; auto is the node's GPUs, else 1", "N|auto", default="auto"
    )
    gpus: int = _option("GPUs of each node", "N", default=0, ge=0, le=1024)
    cpu: Cpu | None = _option("CPUs of each node (2, 0.5, 500m); not enforced on this machine", "CPUS", default=None)
    memory: Memory | None = _option("Memory of each node (16Gi); not enforced on this machine", "SIZE", default=None)
    image: str | None = _option(
        "Container image; on this machine the notebook's own interpreter runs the job", "IMAGE", default=None
    )
    env: EnvLines = _option(
        "Environment: NAME=VALUE, or NAME alone to copy yours as a secret; can be repeated", "NAME[=VALUE]", default=()
    )
    framework: Literal["torch", "python"] = _option(
        "What the ranks expect: torch (MASTER_ADDR and its kin) or plain python", default="torch"
    )
    pip: Lines = _option(
        "Requirement to install for the job, or a requirements file; can be repeated", "REQUIREMENT", default=()
    )
    module: Words = _option("Local modules to ship with the code: files or package folders", "PATH,...", default=())
    use: Names = _option("Notebook values, functions and classes to ship", "NAME,...", default=())
    out: Names = _option("Values of rank 0 to bring back", "NAME,...", default=())
    workspace: str | None = _option("Folder that the ranks start in and keep files in", "DIR", default=None)
    logdir: str | None = _option(
        "Folder of TensorBoard event files; default: one of the job's own", "DIR", default=None
    )
    checkpoint: str | None = _option(
        "Folder for checkpoints that outlives the job: a later job goes on from them; default: the job's own",
        "DIR",
        default=None,
    )
    keep_checkpoints: int = _option("How many of the newest checkpoints to keep", "N", default=3, ge=1)
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = _option(
        "Precision of kf.autocast(), Hugging Face Accelerate and torch's TF32 matrices; default: left to the code",
        default=None,
    )
    retries: int = _option("How often all ranks start again together after a failure", "N", default=0, ge=0, le=1000)
    timeout: Duration | None = _option("Longest time from Running to the end (90, 30s, 10m, 2h)", "TIME", default=None)
    grace: Duration = _option("Time between the request to stop and the kill", "TIME", default=10.0)
    ttl: Duration | None = _option("Time after its end when the job and its files are removed", "TIME", default=None)
    backend: Literal["auto", "local", "kubernetes"] = _option(
        "Where to run: local (and auto, for now) is this machine, kubernetes the cluster of the kubeconfig's context",
        default="auto",
    )
    context: str | None = _option("Context of the kubeconfig; default: the current one", "NAME", default=None)
    namespace: str | None = _option("Namespace on the cluster; default: the context's", "NAME", default=None)
    kind: Literal["auto", "trainjob", "pytorchjob", "job"] = _option(
        "What the job is made as on a cluster; auto is the first of these that it serves", default="auto"
    )
    runtime: str | None = _option("(Cluster)TrainingRuntime of a TrainJob; default: one of torch", "NAME", default=None)
    detach: bool = _option("Return at once; the job runs on without the notebook", default=False)
    dry_run: bool = _option("Show what would be run, and run nothing", default=False)
    args: tuple[str, ...] = Field(default=(), description="Arguments of the script, after --")

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not _NAME.fullmatch(value) or len(value) > NAME_LIMIT:
            raise ValueError(
                f"{value[:80]!r} cannot be a job's name: lower-case letters, digits and '-', a letter first, "
                f"at most {NAME_LIMIT} characters (as Kubernetes wants it)"
            )
        return value

    @field_validator("procs_per_node", mode="before")
    @classmethod
    def _procs(cls, value: Any) -> Any:
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if value != "auto" and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024):
            raise ValueError(f"{value!r} is no number of processes; write 1 to 1024, or auto")
        return value

    @model_validator(mode="after")
    def _together(self) -> TrainSpec:
        overlap = sorted({line.partition("=")[0] for line in self.env if "=" in line} & set(self.env_copies))
        if overlap:
            raise ValueError(f"--env gives {', '.join(overlap)} twice: once with a value, once to be copied")
        for field, value in self:
            if any("\0" in text for text in (value if isinstance(value, tuple) else (value,)) if isinstance(text, str)):
                raise ValueError(f"--{option_name(field)} holds a null byte, which no path or variable can")
        return self

    @property
    def procs(self) -> int:
        """Ranks of each node, ``auto`` resolved."""
        return self.procs_per_node if isinstance(self.procs_per_node, int) else max(self.gpus, 1)

    @property
    def world_size(self) -> int:
        return self.nodes * self.procs

    @property
    def env_values(self) -> dict[str, str]:
        """The variables whose values are in the spec."""
        return {name: value for name, sep, value in (line.partition("=") for line in self.env) if sep}

    @property
    def env_copies(self) -> tuple[str, ...]:
        """The variables to copy from the user's environment; their values are never part of a spec."""
        return tuple(dict.fromkeys(line for line in self.env if "=" not in line))

    def changed(self) -> dict[str, Any]:
        """The options that differ from their defaults, JSON-able, for display and comparison."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude={"version"})


def option_name(field: str) -> str:
    """``procs_per_node`` -> ``procs-per-node``: the name in the magic, the command line and the configuration."""
    return field.replace("_", "-")
