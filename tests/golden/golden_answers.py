"""What a golden model, run or store is asked, and how its answers are compared with those kept beside it."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
import torch
from torch import Tensor

import onlinecde as oc
from onlinecde.models import OnlineModel, StateError
from onlinecde.models.base import present_name
from onlinecde.streaming import Engine
from onlinecde.streaming.codec import StateCodec
from onlinecde.streaming.served import served_model

GOLDEN = Path(__file__).parent / "v0_1"
HOURS = 0.75
"""How long after a row a live model is asked again."""
STATIC = ("age", "sex")
CHANNELS = ("heart_rate", "lactate", "oxygen")
HERE = "@HERE@"
"""Stands in golden files where the folder of the tables stood."""


def machine() -> dict[str, str]:
    """What decides the last bits of a number: instructions, and the libraries compiled to use them."""
    features = llvmlite.binding.get_host_cpu_features()
    flags = sorted(name for name, there in features.items() if there)
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name(),
        "features": hashlib.sha256(" ".join(flags).encode()).hexdigest()[:16],
        "torch instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
    }


def same_machine() -> bool:
    """Whether the golden answers were computed by the same instructions as those of this process."""
    return machine() == json.loads((GOLDEN / "machine.json").read_text())


def series(complete: bool, static: bool) -> oc.SeriesBatch:
    """Five streams of 1 to 7 rows, far from 0 and from each other; with gaps unless `complete`."""
    kept = read_arrays(GOLDEN / "models" / "series.safetensors")
    return oc.SeriesBatch.from_padded(
        kept["times"],
        kept["complete" if complete else "gaps"],
        kept["rows"],
        static=kept["static"] if static else None,
        channels=CHANNELS,
        features=STATIC if static else None,
    )


def read_arrays(file: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(file)


def model_answers(model: OnlineModel, folder: Path) -> dict[str, Tensor]:
    """All that a saved model says of the golden series, offline and online."""
    complete = getattr(model, "control", "rectilinear") != "rectilinear"
    batch = series(complete, model.static > 0)
    with torch.no_grad():
        found = {"rows": model(batch), "final": model(batch, final=True)}
        found["at"] = model(batch, at=query_times(batch))
        if complete:
            found["rows with gaps"] = model(series(False, model.static > 0))
        if _explains(model):
            explained = model.explain(batch)
            found |= {f"explain.{k}": v for k, v in vars(explained).items()}
        found |= _live_answers(model, batch, folder, complete)
    found["gradients"] = _gradients(model, batch)
    return {name: tensor.detach().clone().contiguous() for name, tensor in found.items()}


def query_times(batch: oc.SeriesBatch) -> Tensor:
    """At rows, between them and after the last, (stream, query)."""
    last = batch.times.gather(1, batch.rows[:, None] - 1)
    share = torch.tensor([0.0, 0.13, 0.5, 0.77, 1.0, 1.21], dtype=torch.float64)
    return batch.times[:, :1] + share * (last - batch.times[:, :1] + HOURS)


def _explains(model: OnlineModel) -> bool:
    """Attribution follows a Neural CDE's fixed steps."""
    return isinstance(model, oc.NeuralCDE) and model.solver.tolerance is None


def _live_answers(
    model: OnlineModel, batch: oc.SeriesBatch, folder: Path, complete: bool
) -> dict[str, Tensor]:
    try:
        model.init_state(1, None if batch.static is None else batch.static[:1])
    except StateError:  # the natural cubic control needs the whole series
        return {}
    said, later, steps, states = [], [], [], []
    for stream in range(len(batch)):
        state = model.init_state(1, None if batch.static is None else batch.static[[stream]])
        for row in range(int(batch.rows[stream])):
            t, x = float(batch.times[stream, row]), batch.values[[stream], row]
            if _explains(model) and not complete and row == int(batch.rows[stream]) - 1:
                step = model.explain_observation(state, t, x)
                steps.append(torch.cat([step.start, step.time, step.events[0]]))
            state = model.observe(state, t, x)
            said.append(model.predict(state))
            later.append(model.predict(state, t + HOURS))
        states.append(state)
    found = {"live": torch.cat(said), "live later": torch.cat(later)}
    if steps:
        found["live explained"] = torch.cat(steps)
    if model.dtype != torch.bfloat16:  # which states are not stored in
        bodies = StateCodec(states[0], served_model(folder).hash).encode(
            type(states[0]).concatenate(states)
        )
        found["states"] = torch.from_numpy(
            np.stack([np.frombuffer(body, np.uint8) for body in bodies])
        )
    return found


def stored_states(model: OnlineModel, folder: Path, bodies: Tensor) -> Any:
    """States from the bytes that 0.1.0 wrote of them."""
    static = torch.zeros(1, model.static) if model.static else None
    codec = StateCodec(model.init_state(1, static), served_model(folder).hash)
    return codec.decode([body.numpy().tobytes() for body in bodies])


def _gradients(model: OnlineModel, batch: oc.SeriesBatch) -> Tensor:
    model.zero_grad(set_to_none=True)
    model(batch, at=query_times(batch)).float().square().mean().backward()
    named = {name.replace("readout.", "head."): p for name, p in model.named_parameters()}
    parts = [named[name].grad for name in sorted(named)]  # in the order of their names in 0.1
    parts = [grad.flatten() for grad in parts if grad is not None]
    model.zero_grad(set_to_none=True)
    return torch.cat(parts)


def read_weights(path: Path) -> dict[str, Tensor]:
    """A model's tensors, by their present names."""
    return {present_name(name): tensor for name, tensor in read_arrays(path).items()}


def stream_answers(engine: Engine, stream: str, *, with_past: bool = True) -> dict[str, Any]:
    """All that an engine says of a stream, as plain values for JSON.

    Without its past (history, curve from its first row on), which an exported stream leaves behind.
    """
    info = engine.stream(stream)
    told: dict[str, Any] = {
        "rows": info.rows,
        "first_time": info.first_time,
        "last_time": info.last_time,
        "static": info.static,
        "origin": info.origin,
    }
    if info.last_time is None:
        return told
    told["predictions"] = [
        engine.predict(stream, info.last_time + ahead).tolist() for ahead in (0.0, 0.5, 3.0, 24.0)
    ]
    if with_past:
        curve = engine.curve(stream, points=9)
        told["received"] = info.received
        told["curve"] = [curve.times.tolist(), curve.probabilities.tolist()]
        told["history"] = [
            {
                "time": row.time,
                "events": row.events,
                "superseded": row.superseded,
                "outputs": row.outputs,
                "sequence": row.sequence,
                "received": row.received,
                "revised": [(one.outputs, one.sequence) for one in row.revised],
            }
            for row in engine.history(stream)
        ]
        told["explained"] = _explained(engine, stream)
    return told


def _explained(engine: Engine, stream: str) -> list[dict[str, Any]]:
    if not hasattr(engine.model, "explain"):
        return []
    return [
        {
            "time": row.row_time,
            "start": row.start.tolist(),
            "passing": row.time.tolist(),
            "events": {name: part.tolist() for name, part in row.events.items()},
        }
        for row in engine.explain(stream, 3)
    ]


def store_answers(engine: Engine) -> dict[str, Any]:
    """All that an engine says of its streams, alarms and totals, as plain values for JSON."""
    overview = engine.overview()
    told = {
        "model": engine.model_hash,
        "counters": dict(engine.counters),
        "refusals": dict(engine.refusals),
        "overview": [list(overview.streams), overview.probabilities.tolist()],
        "alarms": [
            {name: getattr(alarm, name) for name in alarm.__slots__} for alarm in engine.alarms()
        ],
        "streams": {name: stream_answers(engine, name) for name in overview.streams},
    }
    return json.loads(json.dumps(told))


def tolerance(dtype: torch.dtype) -> float:
    """By how much of the largest entry answers may differ between two kinds of machines."""
    return {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}[dtype]


def agree(
    found: Tensor,
    wanted: Tensor,
    what: str,
    *,
    exact: bool,
    within: float = 0.0,
    largest: float = 0.0,
) -> None:
    """Bit for bit on a machine of the same kind, else within rounding, as a share of the largest entry.

    `largest` is that of what the entries are parts of, where it is larger.
    """
    assert found.shape == wanted.shape, what
    assert found.dtype == wanted.dtype, what
    assert torch.equal(found.isnan(), wanted.isnan()), what
    if not wanted.numel():
        return
    one, other = found.double().nan_to_num(), wanted.double().nan_to_num()
    apart = float((one - other).abs().max()) / max(float(other.abs().max()), largest, 1e-30)
    if exact or not wanted.is_floating_point():
        assert apart == 0.0, f"{what} differs by {apart:g} of the largest entry"
    else:
        assert apart <= (within or tolerance(found.dtype)), (what, apart)


def json_agrees(found: Any, wanted: Any, *, within: float, where: str = "") -> None:
    """Every entry of `wanted` stands in `found`, numbers within so much; newer entries may stand beside."""
    if isinstance(wanted, dict):
        assert isinstance(found, dict), where
        for name, value in wanted.items():
            assert name in found, f"{where}: {name} is missing"
            json_agrees(found[name], value, within=within, where=f"{where}.{name}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            json_agrees(one, other, within=within, where=f"{where}[{number}]")
    elif isinstance(wanted, float) and within:
        assert abs(found - wanted) <= within * max(1.0, abs(wanted)), (where, found, wanted)
    else:
        assert found == wanted, (where, found, wanted)
