"""The command line: `onlinecde COMMAND`. One thin file a command; heavy imports happen inside them."""

from onlinecde.cli.app import main

__all__ = ["main"]
