"""``python -m kfnb_worker PLAN --node K``, or the zip of this package: the worker of one node. ``--pod``: of a pod."""

from __future__ import annotations

import sys

if sys.argv[1:] == ["--pod"]:
    from kfnb_worker.pod import main
else:
    from kfnb_worker.launcher import main

sys.exit(main(sys.argv[1:]))
