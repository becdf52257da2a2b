"""From a folder of MIMIC-IV to its tasks and its exclusion flow."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import duckdb

from onlinecde.data.errors import DataError
from onlinecde.data.mimic.database import run_concepts
from onlinecde.data.mimic.folder import MimicFolder
from onlinecde.data.mimic.report import MimicReport, build_report
from onlinecde.data.mimic.settings import MimicSettings
from onlinecde.data.mimic.tasks import PLANS, build_task
from onlinecde.data.task import Task


@dataclass(frozen=True)
class Mimic:
    """An open MIMIC-IV with the tables of all concepts; `open_mimic` gives one."""

    folder: MimicFolder
    settings: MimicSettings
    connection: duckdb.DuckDBPyConnection
    """For queries of your own: the tables are those of docs/mimic.md."""

    def task(self, name: str, *, seed: int = 0) -> Task:
        """The task "mortality", "los" or "sepsis"."""
        if name not in PLANS:
            raise DataError(f"MIMIC-IV has no task '{name}': choose one of {', '.join(PLANS)}.")
        found = self.report()
        return build_task(
            self.connection,
            name,
            self.settings,
            seed=seed,
            source=f"MIMIC-IV {self.folder.layout} at {self.folder.path}",
            flow=[(step.what, step.stays) for step in (*found.cohort, *found.tasks[name])],
        )

    def report(self) -> MimicReport:
        """The exclusion flow."""
        return build_report(self.connection, self.folder, self.settings)


@contextmanager
def open_mimic(
    path: str | Path,
    settings: MimicSettings | None = None,
    *,
    memory: str = "1GB",
    threads: int = 2,
    scratch: str | Path | None = None,
) -> Iterator[Mimic]:
    """Open a folder of MIMIC-IV, any release from 1.0 to 3.1, and build every concept.

    `memory` bounds DuckDB; what does not fit goes to a folder under `scratch`, which is deleted on
    leaving. Raises `DataError` naming the file and the column where the folder is not as released.

        with open_mimic("mimic-iv-3.1") as mimic:
            print(mimic.report().text())
            task = mimic.task("sepsis")
    """
    settings = settings if settings is not None else MimicSettings.clean()
    needed = ("procedureevents",) if settings.ventilation_from == "procedures" else ()
    folder = MimicFolder.find(path, needed=needed)
    with run_concepts(
        folder, settings, memory=memory, threads=threads, scratch=scratch
    ) as connection:
        yield Mimic(folder, settings, connection)


def load(
    paths: Sequence[Path],
    *,
    task: str = "mortality",
    seed: int = 0,
    protocol: str = "clean",
    memory: str = "1GB",
    **changes: Any,
) -> Task:
    """Load a task from the folder of MIMIC-IV; `changes` are settings unlike the protocol's."""
    settings = settings_of(protocol, **changes)
    with open_mimic(_only(paths), settings, memory=memory) as mimic:
        return mimic.task(task, seed=seed)


def report(
    paths: Sequence[Path], *, protocol: str = "clean", memory: str = "1GB", **changes: Any
) -> MimicReport:
    """The exclusion flow of the folder of MIMIC-IV under a protocol, with `changes`."""
    with open_mimic(_only(paths), settings_of(protocol, **changes), memory=memory) as mimic:
        return mimic.report()


def settings_of(protocol: str, **changes: Any) -> MimicSettings:
    """The settings of a protocol with some of them changed; None leaves one as it is."""
    known = {field.name for field in fields(MimicSettings)}
    for name in changes:
        if name not in known:
            raise DataError(f"MIMIC-IV has no setting '{name}': it has {', '.join(sorted(known))}.")
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(MimicSettings.named(protocol), **given)


def _only(paths: Sequence[Path]) -> Path:
    if len(paths) != 1:
        raise DataError(
            f"{len(paths)} folders of MIMIC-IV were found ({', '.join(map(str, paths))}): leave "
            "one, or call it mimic-iv."
        )
    return paths[0]


# The registry lists a loader's settings by its signature: every choice is one (None: as protocol).
_own = inspect.signature(load)
load.__signature__ = _own.replace(  # pyright: ignore[reportFunctionMemberAccess]
    parameters=[
        *(p for p in _own.parameters.values() if p.kind is not p.VAR_KEYWORD),
        *(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=field.type
            )
            for field in fields(MimicSettings)
        ),
    ]
)
