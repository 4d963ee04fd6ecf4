"""A job's stream, followed once in a process and told to any number of views as numbered messages.

``open_feed(job)`` is the process's feed of a job; ``Feed.subscribe`` adds a carrier of messages to it: a kernel's comm,
a channel of the server's WebSocket. What is sent and heard is described in ``kfnb.views.feed.subscriber``.
"""

from kfnb.views.feed.feed import Feed, open_feed
from kfnb.views.feed.subscriber import Subscriber

__all__ = ["Feed", "Subscriber", "open_feed"]
