"""Which columns of a new table hold what: as a run was fitted, unless said otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onlinecde.data import DataError
from onlinecde.data.table_categories import known_categories
from onlinecde.data.table_series import Duplicates
from onlinecde.series import Schema

ROLES = ("stream", "time", "channel", "value", "origin")


@dataclass(frozen=True)
class Columns:
    """Columns of a table of events by role, and what to do with two values at one instant."""

    stream: str
    time: str
    channel: str | None = None
    """of a long table, as `value`"""
    value: str | None = None
    origin: str | None = None
    duplicates: Duplicates = "refuse"

    @property
    def taken(self) -> set[str]:
        """All that have a role."""
        return {name for role in ROLES if (name := getattr(self, role)) is not None}


def columns_for(
    origin: str,
    there: Sequence[str],
    schema: Schema,
    given: Mapping[str, Any],
    run: Mapping[str, Any],
) -> tuple[Columns, list[str]]:
    """The columns of a table, and what is worth saying of them.

    Args:
        origin: what to call the table.
        there: its columns.
        schema: of the model.
        given: columns by role, None where the run's are meant.
        run: those that the model was fitted with; empty where it was not fitted on a table.
    """
    chosen: dict[str, Any] = {
        name: given.get(name) or run.get(name) for name in (*ROLES, "duplicates")
    }
    for role in ("stream", "time"):
        if chosen[role] is None:
            raise DataError(
                f"the model was not fitted on a table of your own: say which column of {origin} holds the {role} "
                f"({role}=, --{role}); there are {_few(there)}."
            )
    notes = []
    known = [name for name in schema.channels if name in there]
    known += list(known_categories(schema.channels, there))
    if given.get("channel") is None and given.get("value") is None:
        lacks = [chosen[one] not in there for one in ("channel", "value")]
        if chosen["channel"] is not None and all(lacks) and known:
            notes.append(
                f"{origin} has no column '{chosen['channel']}': read as a wide table, a column a channel"
            )
            chosen["channel"] = chosen["value"] = None
    if (chosen["channel"] is None) != (chosen["value"] is None):
        raise DataError("a long table needs both --channel and --value; a wide one neither.")
    for role in ROLES[:4]:
        if chosen[role] is not None and chosen[role] not in there:
            raise DataError(
                f"{origin}: there is no column '{chosen[role]}' for the {role}; there are {_few(there)}. Say "
                f"which it is ({role}=, --{role})."
            )
    if chosen["channel"] is None and not known:
        raise DataError(
            f"{origin} has none of the model's channels, {_few(schema.channels)}: it has the columns {_few(there)}. "
            "Name them as the model's are named, or, where it is a long table, say which columns hold the channel "
            "and the value (--channel, --value)."
        )
    chosen["duplicates"] = chosen["duplicates"] or "refuse"
    return Columns(**chosen), notes


def _few(names: Sequence[str]) -> str:
    return f"{', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"
