"""How a model is asked at query times: as it answers at any time, or by rows at which nothing is observed."""

from __future__ import annotations

from torch import Tensor

from onlinecde.controls import Measurability
from onlinecde.models.base import Asking, OnlineModel
from onlinecde.models.neural_cde import NeuralCDE
from onlinecde.series import SeriesBatch
from onlinecde.series.empty_rows import filled_queries, with_empty_rows

IN_WORDS: dict[str, str] = {"hold": "holds its last answer", "empty-rows": "given empty rows"}
"""What a discretely online model does between its rows, for comparisons."""


def ask(
    model: OnlineModel,
    batch: SeriesBatch,
    times: Tensor | None = None,
    *,
    final: bool = False,
    asking: Asking | None = None,
) -> Tensor:
    """Outputs at query times, or, without times, as `model(batch, final=final)` gives them.

    Args:
        model: any model.
        batch: the series.
        times: (stream, query) float64, NaN behind a stream's last, or None.
        final: without times, whether the last row alone is asked for.
        asking: "hold": the answer at a time, which of a discretely online model is that after its last row;
            "empty-rows": the answer after a row at that time, empty unless something is observed there. Such rows
            stay in the stream, as where a clock sends them. Default: `model.asking`.

    Returns:
        (stream, query, output); behind a stream's last time its last answer stands.
    """
    if times is None:
        return model(batch, final=final)
    if (asking or model.asking) == "hold":
        return model(batch, at=filled_queries(batch, times))
    series, row = with_empty_rows(model.aligned(batch), times)
    outputs = model(series)
    return outputs.gather(1, row[:, :, None].expand(-1, -1, outputs.shape[2]))


def check_asking(model: OnlineModel, asking: str) -> None:
    """Refuse a way of asking that there is not, or that means nothing for a model."""
    if asking not in IN_WORDS:
        raise ValueError(f"asking is {asking!r}: choose one of {', '.join(IN_WORDS)}.")
    if asking == "empty-rows" and model.measurability is Measurability.CONTINUOUS:
        raise ValueError(
            f"asking is 'empty-rows', which is for models that are online at rows alone: {type(model).__name__} "
            "answers at any time. Leave it out."
        )
    if asking == "empty-rows" and isinstance(model, NeuralCDE):
        raise ValueError(
            f"asking is 'empty-rows', but the {model.control} control would fill an empty row from the future: "
            "leave it out, or use control='rectilinear'."
        )


def called(name: str, model: OnlineModel, asking: Asking | None = None) -> str:
    """A model's name in comparisons by the clock: of one that is online at rows alone with how it was asked."""
    if model.measurability is Measurability.CONTINUOUS:
        return name
    return f"{name}, {IN_WORDS[asking or model.asking]}"
