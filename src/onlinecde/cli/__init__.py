"""The command line: `onlinecde COMMAND`. One thin file a command; heavy imports happen inside them."""

import sys


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; where a package is missing, say which extra brings it."""
    try:
        from onlinecde.cli.app import main as run

        run(arguments)
    except ModuleNotFoundError as error:
        from onlinecde.extras import EXTRAS

        if error.name not in EXTRAS:
            raise
        sys.exit(f"error: {error}")


__all__ = ["main"]
