"""kfnb's part of a Jupyter server: a page reaches the jobs by it while a kernel is busy, or dead.

A server loads it by ``etc/jupyter_server_config.d/kfnb.json``. Its loading costs next to nothing: what is needed for
a job is imported at the first question, in a thread.
"""

from __future__ import annotations

from typing import Any

from jupyter_server.extension.application import ExtensionApp

from kfnb.labserver.events import EventsHandler
from kfnb.labserver.rest import JobHandler, StatusHandler, StopHandler

_JOB = r"/kfnb/api/jobs/([^/]+)"


class LabServer(ExtensionApp):
    name = "kfnb"
    description = "Jobs of notebook cells: asked for, followed and stopped"

    def initialize_handlers(self) -> None:
        self.handlers.extend(
            [
                (r"/kfnb/api/status", StatusHandler),
                (_JOB, JobHandler),
                (_JOB + "/stop", StopHandler),
                (r"/kfnb/api/events", EventsHandler),
            ]
        )


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "kfnb.labserver", "app": LabServer}]
