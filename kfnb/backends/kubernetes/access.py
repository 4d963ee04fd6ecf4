"""Which cluster is meant, and who one is there: a context of the kubeconfig, else the service account of this pod."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfnb.errors import BackendError, UsageError

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Access:
    """``file``: the kubeconfig (a list of paths as ``$KUBECONFIG`` has it); None for a pod's service account."""

    file: str | None
    context: str
    namespace: str

    @property
    def how(self) -> str:
        """For a person: why it is this cluster."""
        if self.file is None:
            return "this pod's service account"
        return f"context {self.context} of {self.file}"

    async def configuration(self) -> Configuration:
        """The client's configuration, with credentials as they are now. Raises ``BackendError``."""
        from kubernetes.aio.client import Configuration
        from kubernetes.aio.config import ConfigException, incluster_config, kube_config
        from yaml import YAMLError

        made = Configuration()
        try:
            if self.file is None:
                incluster_config.load_incluster_config(client_configuration=made)  # type: ignore[no-untyped-call]
            else:
                # persisting would rewrite the user's file, at each load
                await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                    self.file, self.context, made, persist_config=False
                )
        except (ConfigException, YAMLError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise BackendError(
                f"The credentials of {self.how} cannot be used.",
                str(error),
                "See that `kubectl get pods` works, or run on this machine: --backend local.",
            ) from None
        return made


def find(context: str | None = None, namespace: str | None = None, file: str | None = None) -> Access | None:
    """The cluster that is meant, without asking it; None where there is neither a kubeconfig nor a service account.

    ``file``: the kubeconfig; default: that of the environment. Raises ``UsageError`` for a context that it does not
    have, ``BackendError`` where it cannot be read.
    """
    file = file or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if any(Path(path).is_file() for path in file.split(os.pathsep)):
        found = _from_kubeconfig(file, context, namespace)
        if found is not None:
            return found
    elif context is not None:
        raise UsageError(f"There is no context {context!r}: there is no kubeconfig at {file}.")
    if "KUBERNETES_SERVICE_HOST" in os.environ and (_ACCOUNT / "token").is_file():
        return Access(None, "", namespace or _read(_ACCOUNT / "namespace") or "default")
    return None


def _from_kubeconfig(file: str, context: str | None, namespace: str | None) -> Access | None:
    known, current = _contexts(file)
    name = context or current
    if name not in known:
        if context is None:
            return None  # a kubeconfig in which no cluster is chosen
        raise UsageError(f"There is no context {context!r}.", fix=f"{file} has {', '.join(sorted(known)) or 'none'}.")
    return Access(file, name, namespace or known[name].get("namespace") or "default")


def _contexts(file: str) -> tuple[dict[str, dict[str, Any]], str]:
    """The contexts by name and the current one's name, as kubectl merges several files: the first that says it holds.

    Read here, since the official client takes half a second to import, and no kubeconfig without a current context.
    """
    import yaml

    known: dict[str, dict[str, Any]] = {}
    current = ""
    for path in filter(os.path.isfile, file.split(os.pathsep)):
        try:
            content = yaml.safe_load(Path(path).read_text()) or {}
            current = current or str(content.get("current-context") or "")
            for entry in content.get("contexts") or []:
                known.setdefault(str(entry["name"]), dict(entry["context"]))
        except (yaml.YAMLError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BackendError(
                f"{path} cannot be read.", str(error), "Correct it, or run on this machine: --backend local."
            ) from None
    return known, current


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
