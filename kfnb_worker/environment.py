"""The environment of a rank: what torch and the user's code expect to find, and the ports and interfaces in it."""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import Any, Dict, List, Optional

#: torch's and torchrun's own default ports, which somebody else may be about to take.
_TAKEN = frozenset([29400, 29500])

#: What libraries read of a precision: Hugging Face Accelerate its default, torch whether float32 matrices may be
#: multiplied as TF32 (both documented by them).
_PRECISION = {
    "bf16": {"ACCELERATE_MIXED_PRECISION": "bf16"},
    "fp16": {"ACCELERATE_MIXED_PRECISION": "fp16"},
    "tf32": {"ACCELERATE_MIXED_PRECISION": "no", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"},
    "fp32": {"ACCELERATE_MIXED_PRECISION": "no"},
}


def free_port() -> int:
    """A TCP port that is free now, below the ephemeral range, so that no outgoing connection takes it meanwhile.

    Drawn at random: two jobs that start at once hardly draw the same. Raises ``OSError`` when none is free.
    """
    low, high = 15000, 32768
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as source:
            first = int(source.read().split()[0])
        if first > low + 1000:
            high = min(high, first)
    except (OSError, ValueError):
        pass
    for _ in range(200):
        port = low + int.from_bytes(os.urandom(4), "big") % (high - low)
        if port not in _TAKEN and _is_free(port):
            return port
    raise OSError("no free TCP port was found between %d and %d" % (low, high))


def _is_free(port: int) -> bool:
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError:
            if family == socket.AF_INET:
                return False
    return True


def interface_to(address: str) -> Optional[str]:
    """The name of the interface that reaches the IP ``address``; None where that cannot be told."""
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
            own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            if own in _addresses(name, family):
                return name
    except OSError:
        pass
    return None


def _addresses(name: str, family: int) -> List[str]:
    if family == socket.AF_INET6:
        try:
            with open("/proc/net/if_inet6") as source:
                rows = [line.split() for line in source]
        except OSError:
            return ["::1"] if name in ("lo", "lo0") else []
        return [socket.inet_ntop(family, bytes.fromhex(row[0])) for row in rows if row[5] == name]
    import fcntl

    get_address = 0x8915 if sys.platform == "linux" else 0xC0206921  # SIOCGIFADDR
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), get_address, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return []
    return [socket.inet_ntoa(answer[20:24])]


def rank_environment(
    plan: Dict[str, Any],
    node: int,
    local: int,
    attempt: int,
    *,
    secret: Dict[str, str],
    channel: str,
    code: str,
    master: str,
    port: int,
) -> Dict[str, str]:
    """All variables of local rank ``local``: this process's, the plan's and secret's, then torch's and ours."""
    procs, nodes = plan["procs"], plan["nodes"]
    rank = node * procs + local
    env = dict(os.environ)
    env.update(plan["env"])
    env.update(secret)
    worker = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = [code, worker, env.get("PYTHONPATH", "")]
    env.update(
        RANK=str(rank),
        LOCAL_RANK=str(local),
        WORLD_SIZE=str(nodes * procs),
        LOCAL_WORLD_SIZE=str(procs),
        NODE_RANK=str(node),
        GROUP_RANK=str(node),
        PYTHONUNBUFFERED="1",
        PYTHONPATH=os.pathsep.join(filter(None, paths)),
        KFNB_JOB=plan["job"],
        KFNB_NODE=str(node),
        KFNB_NODES=str(nodes),
        KFNB_ATTEMPT=str(attempt),
        KFNB_CHANNEL=channel,
        KFNB_LOGDIR=plan["logdir"],
        KFNB_CHECKPOINTS=plan["checkpoints"],
        KFNB_KEEP_CHECKPOINTS=str(plan["keep_checkpoints"]),
        KFNB_RESULTS=plan["results"],
        KFNB_CODE=code,
        KFNB_PRECISION=plan["precision"] or "",
    )
    for name, value in _PRECISION.get(plan["precision"] or "", {}).items():
        env.setdefault(name, value)
    here = nodes * procs if plan["coordinator"].get("file") else procs  # with a file, all nodes are on this machine
    env.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // here)))
    devices = (plan.get("devices") or {}).get(str(node))
    if devices is not None:
        # All of the node's: code says cuda:LOCAL_RANK, here as under torchrun.
        env["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    if plan["framework"] == "torch":
        env.update(
            MASTER_ADDR=master,
            MASTER_PORT=str(port),
            TORCHELASTIC_RUN_ID=plan["job"],
            TORCHELASTIC_RESTART_COUNT=str(attempt),
            TORCHELASTIC_MAX_RESTARTS=str(plan["attempt"] + plan["retries"]),
        )
        interface = interface_to(master)
        if interface:
            env.setdefault("GLOO_SOCKET_IFNAME", interface)
            env.setdefault("TP_SOCKET_IFNAME", interface)
    return env


def _cores() -> int:
    """Cores this process may use: its affinity, and the quota of its cgroup."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max") as source:
            quota, period = source.read().split()
        if quota != "max":
            cores = min(cores, max(1, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        pass
    return cores
