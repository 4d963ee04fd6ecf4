"""``python -m kfnb``."""

from kfnb.cli import main

raise SystemExit(main())
