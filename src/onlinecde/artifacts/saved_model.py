"""A model as a folder: `model.safetensors` and `manifest.json`; written whole or not at all, no pickle."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors
import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor, nn

from onlinecde.artifacts.folders import (
    ArtifactError,
    check_target,
    identity,
    read_file,
    replace_file,
    write,
)
from onlinecde.controls import Encoding
from onlinecde.models import (
    MODELS,
    AlarmPolicy,
    AlarmPolicyError,
    Intervals,
    IntervalsError,
    NeuralCDE,
    OnlineModel,
    Readout,
)
from onlinecde.models.asking import check_asking
from onlinecde.models.base import Asking, present_name
from onlinecde.models.flat_settings import present_config
from onlinecde.series import Schema, SeriesError
from onlinecde.solvers import MLPField, Solver
from onlinecde.solvers.fields import has_hooks
from onlinecde.version import __version__

FORMAT = "onlinecde model"
VERSION = 1
WEIGHTS, MANIFEST, CARD = "model.safetensors", "manifest.json", "README.md"
_LARGEST_MANIFEST = 4 * 2**20
_LARGEST_WEIGHTS = 16 * 2**30
_LARGEST_NUMBER = 2**31
_LAYER_COUNTS = ("depth", "layers")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says of a saved model."""

    model: str
    """Name of its class."""
    config: dict[str, Any]
    """Arguments of its constructor."""
    bytes: int
    """Size of the weights file."""
    sha256: str
    """of the weights file"""
    channels: tuple[str, ...] | None = None
    units: tuple[str, ...] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] | None = None
    """The model's `Schema` as JSON; None in folders of 0.1, and where its channels have no names"""
    asking: str = "hold"
    """How the model is asked between rows"""
    alarm_policy: dict[str, Any] | None = None
    """The model's `AlarmPolicy` as JSON; None where it has none, and in folders of 0.1"""
    intervals: dict[str, Any] | None = None
    """A regression's `Intervals` as JSON; None where it has none, and in folders of 0.1"""
    boundary: float | None = None
    """The model's `boundary`; None where it has none, and in folders of 0.1"""
    format: str = FORMAT
    version: int = VERSION

    def text(self) -> bytes:
        """What `manifest.json` holds."""
        content = asdict(self)
        for name in ("alarm_policy", "intervals", "boundary"):
            if content[name] is None:
                del content[name]
        return (json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()

    def named_schema(self) -> Schema | None:
        """The model's schema; for a folder of 0.1, what can be told from its names. None where there are none."""
        if self.schema is not None:
            return Schema.from_json(self.schema)
        if self.channels is None or len(set(self.channels)) < len(self.channels):
            return None
        given, count = self.extra.get("static"), self.config.get("static", 0)
        if not isinstance(given, list) or len(given) != count:
            given = [f"f{number}" for number in range(count)]
        return Schema.of_names(
            self.channels, [str(name) for name in given], self.extra.get("time_unit")
        )


def save(
    model: OnlineModel,
    folder: str | os.PathLike[str],
    *,
    extra: Mapping[str, Any] | None = None,
    channels: Sequence[str] | None = None,
    units: Sequence[str] | None = None,
    card: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a model to a folder; whoever looks, at any moment, finds all of it or none.

    One that `load` would not make the same again is refused: with parts, hooks or settings that its constructor did not
    put there. Of parts of one's own, the names of their classes and their `config` (constructor arguments) are saved.

    Args:
        model: what is saved.
        folder: where; one that is there already is refused, unless `overwrite` is given and it holds a saved
            model: then the new one takes its place in one move.
        extra: anything that can be JSON (task, metrics, ...).
        channels: names of its channels; default: those of `model.schema`, which is saved with it.
        units: and their units.
        card: text of its `README.md`.
        overwrite: as above.

    Returns:
        The folder.

    Raises:
        ArtifactError: the model cannot be saved, or not there.

    >>> save(model, "out/model", extra={"task": "sepsis"})  # doctest: +SKIP
    """
    target = Path(folder)
    check_target(target, overwrite, MANIFEST)
    files = pack(model, extra=extra, channels=channels, units=units)
    files |= {} if card is None else {CARD: card.encode()}
    write(files, target, overwrite)
    return target


def pack(
    model: OnlineModel,
    *,
    extra: Mapping[str, Any] | None = None,
    channels: Sequence[str] | None = None,
    units: Sequence[str] | None = None,
) -> dict[str, bytes]:
    """The files of a saved model, by name, for other places than a folder; arguments and errors as of `save`."""
    config = _as_json(getattr(model, "config", None), "the model's config")
    _check_rebuilt(model, config, tensors := _tensors(model))
    weights = write_tensors(tensors)
    schema = model.schema
    if channels is None and schema is not None:
        channels = schema.channels
    names = _names(channels, model.channels, "channels")
    if schema is not None and names is not None:
        schema = replace(schema, channels=names)
    manifest = Manifest(
        model=type(model).__name__,
        config=config,
        bytes=len(weights),
        sha256=hashlib.sha256(weights).hexdigest(),
        channels=names,
        units=_names(units, model.channels, "units"),
        versions=_versions(),
        extra=_as_json(extra or {}, "extra"),
        schema=None if schema is None else schema.as_json(),
        asking=model.asking,
        alarm_policy=_policy_as_json(model, model.alarm_policy),
        intervals=None if model.intervals is None else model.intervals.as_json(),
        boundary=model.boundary,
    )
    return {WEIGHTS: weights, MANIFEST: manifest.text()}


def save_alarm_policy(
    folder: str | os.PathLike[str],
    policy: AlarmPolicy | None,
    *,
    classes: Iterable[type[nn.Module]] = (),
) -> None:
    """Give a saved model another alarm policy, or none; the manifest alone is written, in one move.

    Args:
        folder: where the model is.
        policy: its policy from now on.
        classes: as in `load`.

    Raises:
        ArtifactError: the folder holds no model, or the policy is none for it.
    """
    home = Path(folder)
    model = load(home, classes=classes)
    manifest = replace(read_manifest(home), alarm_policy=_policy_as_json(model, policy))
    replace_file(home, MANIFEST, manifest.text())


def _policy_as_json(model: OnlineModel, policy: AlarmPolicy | None) -> dict[str, Any] | None:
    if policy is None:
        return None
    _check_policy(model, policy, "alarm_policy")
    return _as_json(policy.as_json(), "alarm_policy")


def _check_policy(model: OnlineModel, policy: AlarmPolicy, where: str) -> None:
    readout = getattr(model, "readout", None)
    bins = getattr(readout, "bins", None)
    try:
        policy.check_outputs(model.outputs, getattr(readout, "kind", "regression"))
        if bins is not None:
            _ = bins.check_horizon(policy.horizon)
    except ValueError as error:
        raise ArtifactError(f"{where}: {error}") from error


def _versions() -> dict[str, str]:
    return {
        "onlinecde": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
        "python": platform.python_version(),
    }


def load(folder: str | os.PathLike[str], *, classes: Iterable[type[nn.Module]] = ()) -> OnlineModel:
    """Read a model that `save` wrote, in eval mode on the CPU; nothing in the folder is run.

    Args:
        folder: where it is; files that `save` did not write are ignored.
        classes: classes of one's own that the model or its parts are of; the folder only names them.

    Returns:
        The model, the same bit for bit.

    Raises:
        ArtifactError: the folder is damaged, incomplete or not what it says it is, or a class is not known.
    """
    home = Path(folder)
    known: Known = {**{own.__name__: own for own in classes}, **MODELS, **_PARTS}
    while True:
        before = identity(home)
        try:
            return _read(partial(read_file, home), read_manifest(home), known, str(home))
        except ArtifactError:
            # What was read may be half of one model and half of the one that took its place.
            if identity(home) == before:
                raise


def unpack(files: Mapping[str, bytes], *, classes: Iterable[type[nn.Module]] = ()) -> OnlineModel:
    """The model whose files `pack` gave, trusted as little as those of a folder; arguments and errors as of `load`.

    >>> from onlinecde.models import GRU
    >>> unpack(pack(GRU(channels=1, hidden=2, outputs=1))).hidden
    2
    """

    def read(name: str, most: int) -> bytes:
        if len(data := files.get(name, b"")) > most:
            raise ArtifactError(f"{where}: {name} has {len(data)} bytes, more than {most}.")
        return data

    where = "the packed model"
    known: Known = {**{own.__name__: own for own in classes}, **MODELS, **_PARTS}
    return _read(read, _manifest(read, where), known, where)


Known = Mapping[str, type[nn.Module]]
Read = Callable[[str, int], bytes]
"""The bytes of a file by name, at most so many; ArtifactError where there are more."""
_PARTS: Known = {part.__name__: part for part in (Encoding, MLPField, Readout)}


def _read(read: Read, manifest: Manifest, known: Known, home: str) -> OnlineModel:
    kind = _class(manifest.model, known, "the model", home)
    if not issubclass(kind, OnlineModel):
        raise ArtifactError(f"{home}: {manifest.model} is no model: give its class in `classes`.")
    data = read(WEIGHTS, min(manifest.bytes, _LARGEST_WEIGHTS))
    if len(data) != manifest.bytes or hashlib.sha256(data).hexdigest() != manifest.sha256:
        raise ArtifactError(
            f"{home}: {WEIGHTS} is not the file the manifest was written for: it is damaged, cut "
            "short or exchanged. Copy the folder again."
        )
    try:
        tensors = read_tensors(data)
    except Exception as error:  # safetensors, numpy and torch each raise their own
        raise ArtifactError(f"{home}: {WEIGHTS} is not a safetensors file ({error}).") from error
    model = _build(kind, present_config(kind, manifest.config), tensors, known, home)
    try:
        schema = manifest.named_schema()
    except SeriesError as error:
        raise ArtifactError(f"{home}: `schema` in {MANIFEST} is damaged: {error}") from error
    if schema is not None:
        named = len(schema.channels), len(schema.features)
        if named != (model.channels, model.static) or len(set(schema.channels)) < named[0]:
            raise ArtifactError(
                f"{home}: {MANIFEST} names {named[0]} channels and {named[1]} static features for a model "
                f"of {model.channels} and {model.static}."
            )
        model.schema = schema
    try:
        check_asking(model, manifest.asking)
    except ValueError as error:
        raise ArtifactError(f"{home}: `asking` in {MANIFEST} is damaged: {error}") from error
    model.asking = cast(Asking, manifest.asking)
    if manifest.alarm_policy is not None:
        where = f"{home}: `alarm_policy` in {MANIFEST}"
        try:
            model.alarm_policy = AlarmPolicy.from_json(manifest.alarm_policy)
        except AlarmPolicyError as error:
            raise ArtifactError(f"{where}: {error}") from error
        _check_policy(model, model.alarm_policy, where)
    model.boundary = manifest.boundary
    if manifest.intervals is not None:
        where = f"{home}: `intervals` in {MANIFEST}"
        try:
            model.intervals = Intervals.from_json(manifest.intervals)
        except IntervalsError as error:
            raise ArtifactError(f"{where}: {error}") from error
        if model.intervals.outputs != model.outputs:
            raise ArtifactError(
                f"{where} are of {model.intervals.outputs} outputs, the model has {model.outputs}."
            )
    return model


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read what a folder says of its model, without reading the weights."""
    home = Path(folder)
    if not home.is_dir():
        raise ArtifactError(f"{home} is not a folder: give the folder of a saved model.")
    return _manifest(partial(read_file, home), str(home))


def _manifest(read: Read, home: str) -> Manifest:
    try:
        content = json.loads(read(MANIFEST, _LARGEST_MANIFEST))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{home}: {MANIFEST} is not JSON ({error}).") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ArtifactError(f"{home}: {MANIFEST} does not describe an onlinecde model.")
    if content.get("version") != VERSION:
        raise ArtifactError(
            f"{home}: the manifest has version {content.get('version')!r}, this onlinecde reads "
            f"{VERSION}: use the onlinecde that wrote it."
        )
    for name, kind in _KINDS.items():
        if not isinstance(content.get(name), kind) or isinstance(content.get(name), bool):
            raise ArtifactError(f"{home}: `{name}` in {MANIFEST} is missing or of a wrong type.")
    unknown = set(content) - {f.name for f in fields(Manifest)}
    if unknown:
        raise ArtifactError(
            f"{home}: {MANIFEST} has an entry {min(unknown)!r} of no known meaning."
        )
    for name in ("channels", "units"):
        names = content.get(name)
        if names is not None:
            if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
                raise ArtifactError(f"{home}: `{name}` in {MANIFEST} is not a list of names.")
            content[name] = tuple(names)
    for name in ("schema", "alarm_policy", "intervals"):
        if not isinstance(content.get(name), dict | None):
            raise ArtifactError(f"{home}: `{name}` in {MANIFEST} is of a wrong type.")
    boundary = content.get("boundary")
    if boundary is not None and not (isinstance(boundary, float) and 0 <= boundary <= 1):
        raise ArtifactError(f"{home}: `boundary` in {MANIFEST} is {boundary!r}: no probability.")
    return Manifest(**content)


_KINDS = {
    "model": str,
    "config": dict,
    "bytes": int,
    "sha256": str,
    "versions": dict,
    "extra": dict,
}


def _class(name: str, known: Known, what: str, home: str) -> type[nn.Module]:
    if name not in known:
        raise ArtifactError(
            f"{home}: {what} is a {name!r}, which is none of {', '.join(known)}: give its class, "
            f"load(folder, classes=[{name}]), or use the version of onlinecde that wrote it."
        )
    return known[name]


def _class_names(config: Any) -> Iterator[str]:
    """Names of classes that a config has records of."""
    if isinstance(config, Mapping):
        if config.keys() == {"class", "config"}:
            yield config["class"]
        for value in config.values():
            yield from _class_names(value)


def _with_parts(config: Mapping[str, Any], known: Known, home: str) -> dict[str, Any]:
    """A config with a part of a class for each record of one, see `models.parts.recorded`."""
    built: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            value = _with_parts(value, known, home)
            if value.keys() == {"class", "config"}:
                kind = _class(str(value["class"]), known, f"`{name}`", home)
                try:
                    value = kind(**value["config"])
                except Exception as error:
                    raise ArtifactError(
                        f"{home}: `{name}`, a {kind.__name__}, cannot be built ({error}): a class of your own "
                        "whose constructor takes arguments keeps them as a mapping in its attribute `config`."
                    ) from error
        built[name] = value
    return built


def _check_sizes(config: Mapping[str, Any], tensors: int, cls: type, home: str) -> None:
    for name, value in config.items():
        most = tensors if name in _LAYER_COUNTS else _LARGEST_NUMBER
        if isinstance(value, Mapping):
            _check_sizes(value, tensors, cls, home)
        elif isinstance(value, int) and not -_LARGEST_NUMBER <= value <= most:
            raise ArtifactError(f"{home}: `{name}` is {value}, which no model of this size has.")


def _build(
    cls: type[OnlineModel],
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    known: Known,
    home: str,
) -> OnlineModel:
    """A model of the class with these tensors, which must be exactly its own."""
    taken = inspect.signature(cls).parameters
    unknown = set(config) - set(taken)
    if unknown and all(one.kind is not one.VAR_KEYWORD for one in taken.values()):
        raise ArtifactError(f"{home}: {cls.__name__} takes no argument {min(unknown)!r}.")
    _check_sizes(config, len(tensors), cls, home)
    with _building(f"{home}: {cls.__name__} cannot be built from the manifest's config"):
        with torch.device("meta"):
            plan = cls(**_with_parts(config, known, home))
        own = plan.state_dict()
        tensors = {name if name in own else present_name(name): t for name, t in tensors.items()}
        _check_tensors(own, tensors, f"{home}: ")
        model = cls(**_with_parts(config, known, home))
    model.load_state_dict(tensors, assign=True)
    if isinstance(model, NeuralCDE) and model.trees is not None:
        with _building(f"{home}: the trees of {cls.__name__} cannot be followed"):
            model.trees.check(model.told)
    return model.eval()


def _check_rebuilt(model: OnlineModel, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Refuse a model that its class would not make the same again from its config."""
    cls = type(model)
    ours = {**MODELS, **_PARTS}
    named = {cls.__name__, *_class_names(config)}
    own = {type(m).__name__: type(m) for m in model.modules() if type(m).__name__ in named}
    own[cls.__name__] = cls
    for name, kind in own.items():
        if ours.get(name, kind) is not kind:
            raise ArtifactError(
                f"a class of your own has the name of this library's {name}, which load would build: "
                "rename it."
            )
    with _building(f"{cls.__name__} cannot be built from the model's config"), torch.device("meta"):
        plan = cls(**_with_parts(config, {**own, **ours}, "the model's config"))
    if (lost := next(_lost(model, plan), None)) is not None:
        raise ArtifactError(
            f"{lost}: load would lose that. Build the model with it, in the constructor of a class of your "
            "own if need be, or keep model.state_dict() yourself."
        )
    _check_tensors(plan.state_dict(), tensors, "")


def _lost(model: OnlineModel, plan: OnlineModel) -> Iterator[str]:
    """What of a model is not in one that was built anew."""
    mine, rebuilt = (dict(m.named_modules(remove_duplicate=False)) for m in (model, plan))
    for name in [*mine, *(name for name in rebuilt if name not in mine)]:
        if (difference := _difference(mine.get(name), rebuilt.get(name))) is not None:
            yield f"`{name}` {difference}" if name else f"the model {difference}"
    for name in sorted(model.state_dict().keys() ^ plan.state_dict().keys()):
        yield f"`{name}` {'is missing' if name in plan.state_dict() else 'was added later'}"


def _difference(module: nn.Module | None, rebuilt: nn.Module | None) -> str | None:
    """What sets a module of a model apart from that of the model built anew; None if nothing."""
    if module is None or rebuilt is None:
        return "is missing" if module is None else "was added after the model was built"
    if type(module) is not type(rebuilt):
        return f"is a {type(module).__name__} in place of a {type(rebuilt).__name__}"
    if has_hooks(module) and not has_hooks(rebuilt):
        return "has hooks"
    here, there = vars(module), vars(rebuilt)
    for name in sorted(here.keys() | there.keys()):
        old, new = there.get(name), here.get(name)
        if name not in there and callable(new):
            return f"has a {name!r} of its own"
        plain = isinstance(old, _PLAIN) and isinstance(new, _PLAIN)
        if plain and old != new and name != "training" and not name.startswith("_"):
            return f"has {name} = {new!r} in place of {old!r}"
    return None


_PLAIN = (bool, int, float, str, type(None), Solver)


@contextmanager
def _building(failed: str) -> Iterator[None]:
    """Random numbers are left alone inside, and what a constructor raises is an ArtifactError.

    With a default of float64, the tensors that are always float64 could not be told from the others.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    except ArtifactError:
        raise
    except Exception as error:  # whatever a constructor makes of a config it cannot take
        raise ArtifactError(f"{failed} ({error}).") from error
    finally:
        torch.set_default_dtype(before)


def _check_tensors(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], home: str) -> None:
    for name in wanted.keys() - given.keys():
        raise ArtifactError(f"{home}the weights lack the tensor {name!r}.")
    for name in given.keys() - wanted.keys():
        raise ArtifactError(f"{home}the weights hold a tensor {name!r} the model does not have.")
    usual = torch.get_default_dtype()
    kinds = {given[name].dtype for name, tensor in wanted.items() if tensor.dtype == usual}
    for name, tensor in wanted.items():
        own = given[name]
        if own.shape != tensor.shape:
            raise ArtifactError(
                f"{home}tensor {name!r} has shape {tuple(own.shape)}, the model needs "
                f"{tuple(tensor.shape)}."
            )
        fits = own.dtype in _FLOATS if tensor.dtype == usual else own.dtype == tensor.dtype
        if not fits or len(kinds) > 1:
            raise ArtifactError(f"{home}tensor {name!r} has a dtype of its own, {own.dtype}.")


def _tensors(model: OnlineModel) -> dict[str, Tensor]:
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ArtifactError(f"the model's state holds {name!r}, which is not a tensor.")
    # Views of one tensor would be one in the file: each gets memory of its own.
    return {name: value.detach().cpu().clone().contiguous() for name, value in state.items()}


def _as_json(content: Any, what: str) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        raise ArtifactError(f"{what} is a {type(content).__name__}: give names and plain values.")
    try:
        copy = json.loads(json.dumps(dict(content), allow_nan=False, default=_plain_number))
    except (TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{what} cannot be written as JSON ({error}): give numbers, texts, lists and the like."
        ) from error
    return copy


def _plain_number(value: Any) -> int | float | bool:
    if isinstance(value, np.integer | np.floating | np.bool_):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _names(names: Sequence[str] | None, channels: int, what: str) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str) or len(names) != channels:
        raise ArtifactError(f"{len(names)} {what} for {channels} channels: give one for each.")
    return tuple(str(name) for name in names)
