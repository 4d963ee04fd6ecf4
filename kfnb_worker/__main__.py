"""``python -m kfnb_worker PLAN --node K``, or the zip of this package: the worker of one node."""

from __future__ import annotations

import sys

from kfnb_worker.launcher import main

sys.exit(main(sys.argv[1:]))
