"""HTTP and WebSocket API over a streaming engine, the monitor page, replay.

`create_app` makes the application, `serve_forever` and `in_background` run it.
"""

from onlinecde.serving.app import create_app
from onlinecde.serving.problems import ServingError
from onlinecde.serving.running import in_background, serve_forever
from onlinecde.serving.settings import Limits, ServeSettings
from onlinecde.serving.tokens import TokenBook

__all__ = [
    "Limits",
    "ServeSettings",
    "ServingError",
    "TokenBook",
    "create_app",
    "in_background",
    "serve_forever",
]
