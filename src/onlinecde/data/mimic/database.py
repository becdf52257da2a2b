"""Runs the concepts of sql/, one after the other, in a DuckDB of bounded memory on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import duckdb

from onlinecde.data.errors import DataError
from onlinecde.data.mimic.folder import MimicFolder
from onlinecde.data.mimic.settings import MimicSettings

CONCEPTS: tuple[str, ...] = (
    "items",
    "stays",
    "charted",
    "measured",
    "body",
    "vital_signs",
    "laboratory",
    "ventilation",
    "blood_gas",
    "coma_scale",
    "urine_output",
    "vasopressors",
    "sofa",
    "antibiotics",
    "cultures",
    "suspicion",
    "sepsis",
    "rows",
    "cohort",
    "mortality",
    "length_of_stay",
    "sepsis_rows",
)
"""The files of sql/ in the order in which each finds the tables it needs."""


def read_concept(name: str) -> str:
    """The SQL of a concept."""
    return (resources.files("onlinecde.data.mimic") / "sql" / f"{name}.sql").read_text("utf-8")


@contextmanager
def run_concepts(
    folder: MimicFolder,
    settings: MimicSettings,
    *,
    memory: str = "1GB",
    threads: int = 2,
    scratch: str | Path | None = None,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Give a connection to a database with the table of every concept; it is deleted afterwards.

    `memory` bounds what DuckDB keeps in memory; the rest lies in a folder of its own under
    `scratch` (default: the system's temporary folder). Raises `DataError` naming the file that
    could not be read; nothing is left behind.
    """
    with tempfile.TemporaryDirectory(prefix="onlinecde-mimic-", dir=scratch) as place:
        connection = duckdb.connect(str(Path(place) / "concepts.duckdb"))
        try:
            _configure(connection, place, memory, threads)
            _set_variables(connection, settings)
            folder.create_views(connection)
            for name in CONCEPTS:
                sql = read_concept(name)
                try:
                    connection.execute(sql)
                except duckdb.OutOfMemoryException as error:
                    raise DataError(
                        f"MIMIC-IV concept '{name}' needs more than {memory} of memory: give more "
                        "with `memory`, fewer `threads`, or more disk under `scratch` "
                        f"({str(error).splitlines()[0]})."
                    ) from error
                except (
                    duckdb.DataError,
                    duckdb.OperationalError,
                    duckdb.InvalidInputException,
                ) as error:
                    raise folder.blame(sql, error) from error
            yield connection
        finally:
            connection.close()


def _configure(
    connection: duckdb.DuckDBPyConnection, place: str, memory: str, threads: int
) -> None:
    try:
        connection.execute(f"set memory_limit = '{memory.replace(chr(39), '')}'")
    except duckdb.Error as error:
        raise DataError(f"memory is {memory!r}: give a size such as '1GB' or '800MB'.") from error
    if threads < 1:
        raise DataError(f"threads is {threads}: give at least 1.")
    connection.execute(f"set threads = {threads}")
    connection.execute("set temp_directory = '" + f"{place}/spill".replace("'", "''") + "'")
    # Rows may come in any order: every concept that minds orders them itself.
    connection.execute("set preserve_insertion_order = false")


def _set_variables(connection: duckdb.DuckDBPyConnection, settings: MimicSettings) -> None:
    """Make every setting readable in SQL as getvariable('name')."""
    for name, value in settings.as_dict().items():
        connection.execute(f"set variable {name} = {_literal(value)}")
    channels = ", ".join(_literal(name) for name in settings.channels)
    connection.execute(f"set variable channels = [{channels}]")


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value!r}::double"
    if isinstance(value, int):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"
