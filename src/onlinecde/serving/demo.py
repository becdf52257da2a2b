"""The last stage of the demo: a server, a ward replayed to it, and the page to look at."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from onlinecde.serving.app import create_app
from onlinecde.serving.opening import open_engine
from onlinecde.serving.problems import ServingError
from onlinecde.serving.replay import Server, replay
from onlinecde.serving.running import in_background
from onlinecde.serving.screenshots import find_browser, screenshot
from onlinecde.serving.settings import ServeSettings
from onlinecde.serving.verify import Questions, verify

if TYPE_CHECKING:
    from onlinecde.data import Task
    from onlinecde.models import OnlineModel

SPEED = 120.0
"""Two hours of the ward a minute, for someone who watches"""
FAST = 36_000.0
"""Ten hours a second, where no one does; the page's clock goes on at `SPEED`"""
SHARE = 0.02
"""Part of the validation rows at or above the alarm's threshold"""


def live_demo(
    model_folder: str | os.PathLike[str],
    *,
    task: Task,
    out: str | os.PathLike[str],
    interactive: bool,
    streams: int = 80,
    say: Callable[[str], None] = print,
) -> None:
    """Serve a model on a free port of this machine and replay held-out streams of its task to it.

    interactive: say the address and stay until Ctrl-C. Otherwise: replay fast, compare every answer with the
    offline model, save a picture of the page as `monitor.png` where there is a Chromium, and end.

    Raises:
        ServingError: an answer differs from the offline model.
    """
    from onlinecde.artifacts import load
    from onlinecde.training import model_folder as home_of

    home, folder = home_of(model_folder), Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    model = load(home)
    for part in ("", "-wal", "-shm"):
        (folder / f"live.db{part}").unlink(missing_ok=True)
    settings = ServeSettings(
        port=0,
        clock_speed=SPEED,
        title=task.name.replace("-", " ").capitalize(),
        units=_units(task),
    )
    engine, settings = open_engine(
        home,
        folder / "live.db",
        settings,
        time_unit=task.time_unit,
        lateness=1.0,
        threshold=alarm_threshold(model, task),
    )
    series = task.split("test")[0]
    series = series[: min(streams, len(series))]
    with in_background(create_app(engine, settings), settings) as url:
        server = Server(url)
        try:
            if interactive:
                say(f"the ward, {SPEED:g} times faster than life: {url}  (Ctrl-C ends it)")
                try:
                    replay(series, server, speed=SPEED, prefix="bed ", spread=0.9)
                    say("everyone has left; the page stays until Ctrl-C")
                    while True:
                        time.sleep(3600)
                except KeyboardInterrupt:
                    say("ended")
                return
            questions = Questions(server, series, "bed ")
            done = replay(
                series,
                server,
                speed=FAST,
                prefix="bed ",
                spread=0.8,
                seconds=4.0,
                between=questions,
            )
            say(str(done))
            result = verify(model, series, server, done, prefix="bed ", between=questions.answered)
            say(str(result))
            if not result.holds:
                raise ServingError(f"the server's answers are not the model's: {result}")
            browser, why = find_browser()
            if browser is None:
                say(f"no picture of the page: {why}")
            else:
                say(f"the page: {screenshot(url, folder / 'monitor.png')}")
        finally:
            server.close()


def alarm_threshold(model: OnlineModel, task: Task) -> float | None:
    """The probability that 2 of 100 validation rows reach; None where there is nothing to be alarmed by."""
    if task.kind != "binary":
        return None
    series = model.prepare(task.split("validation")[0])
    with torch.no_grad():
        risks = torch.sigmoid(model(series)[..., 0].double())[series.real].numpy()
    return round(float(np.quantile(risks, 1 - SHARE)), 2)


def _units(task: Task) -> tuple[str, ...] | None:
    """Units of the simulated ward's channels; other tasks do not say."""
    from onlinecde.data.ward_model import CHANNELS

    known = {one.name: one.unit for one in CHANNELS}
    names = task.series.channels
    return tuple(known[name] for name in names) if all(n in known for n in names) else None
