"""The HTTP API: routes under `/v1` by subject, one file each."""

from onlinecde.serving.api.admin import admin_routes
from onlinecde.serving.api.alarms import alarm_routes
from onlinecde.serving.api.events import event_routes, taking_events
from onlinecde.serving.api.jobs import job_routes
from onlinecde.serving.api.lifecycle import lifecycle_routes
from onlinecde.serving.api.server import server_routes
from onlinecde.serving.api.streams import stream_routes

__all__ = [
    "admin_routes",
    "alarm_routes",
    "event_routes",
    "job_routes",
    "lifecycle_routes",
    "server_routes",
    "stream_routes",
    "taking_events",
]
