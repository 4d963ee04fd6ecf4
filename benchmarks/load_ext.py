"""`%load_ext kfnb` in a live kernel, each time a new one."""

from __future__ import annotations

import subprocess

from jupyter_client.manager import start_new_kernel

from benchmarks._common import median, tell

CODE = """
import time
began = time.perf_counter()
%load_ext kfnb
print(1000 * (time.perf_counter() - began))
"""
KERNELS = 7


def load_ms() -> float:
    manager, client = start_new_kernel(kernel_name="python3", stderr=subprocess.DEVNULL)
    printed: list[str] = []

    def hear(message: dict[str, dict[str, str]]) -> None:
        printed.append(message["content"].get("text", ""))

    try:
        client.execute_interactive(CODE, output_hook=hear, timeout=60)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return float("".join(printed).split()[-1])


def main() -> None:
    load_ms()  # compiles the modules, as an installation does
    found = [load_ms() for _ in range(KERNELS)]
    spread = f"{min(found):.0f} to {max(found):.0f} in {KERNELS} kernels"
    tell("%load_ext kfnb", f"{median(found):.0f} ms ({spread})", "under 40 ms", median(found) < 40)


if __name__ == "__main__":
    main()
