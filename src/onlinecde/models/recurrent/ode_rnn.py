"""ODE-RNN (Rubanova et al. 2019): a neural ODE between rows, a GRU update at rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from onlinecde.controls import Measurability
from onlinecde.models.base import arguments
from onlinecde.models.readout import Kind
from onlinecde.models.recurrent.ode_recurrence import ode_recurrence
from onlinecde.models.recurrent.recurrent_model import RecurrentModel, Rows
from onlinecde.solvers import MLPField
from onlinecde.solvers.counting import note_evaluations
from onlinecde.solvers.fields import Activation, as_field, has_hooks, not_plain
from onlinecde.solvers.segments import steps_for, time_segment
from onlinecde.solvers.solve import check_states, solve_problem
from onlinecde.solvers.solver import Solver


class ODERNN(RecurrentModel):
    """ODE-RNN: `dh/dt = MLP(h)` over the true time between rows, `h' = GRU(h, (values, mask))` at rows.

    A neural ODE is a CDE whose only channel is time, so a stretch without events is a time leg,
    solved as `solve` does with the same settings (`max_step` in the units of the series' times),
    and with gradients that keep h at its ends alone; on a GPU, where all legs take as many steps, all
    rows at once, with gradients that keep what each layer took in. `width`, `depth` and `activation`
    are the MLP's. At a row the GRU sees values carried forward and the mask of what was observed. Time is
    scaled by `model.encoding`, fitted with `model.encoding.fit(train)`. Static features enter as
    the state before the first row, a linear map of them.

    Continuously online: `predict` between rows lets h go on without committing it.

    >>> model = ODERNN(channels=2, hidden=8, outputs=1)
    >>> state = model.observe(model.init_state(), t=0.0, x=[[36.6, float("nan")]])
    >>> model.predict(state, t=1.5).shape
    torch.Size([1, 1])
    """

    def __init__(
        self,
        channels: int,
        hidden: int = 64,
        outputs: int = 1,
        static: int = 0,
        *,
        width: int = 64,
        depth: int = 2,
        activation: Activation = "tanh",
        kind: Kind = "regression",
        readout_width: int | None = None,
        channel_dropout: float = 0.0,
        gain: float = 1.0,
        clip: float | None = None,
        method: str = "rk4",
        steps: int = 1,
        max_step: float | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        gradient: Literal["exact", "backprop", "adjoint"] = "exact",
        backend: Literal["auto", "torch", "cpu"] = "auto",
    ) -> None:
        self.config = arguments(locals())
        super().__init__(
            channels, hidden, outputs, static, 1, kind, readout_width, channel_dropout, gain, clip
        )
        self.field = MLPField(hidden, 1, width, depth, activation, final="identity")
        self.cell = nn.GRUCell(2 * channels, hidden)
        self.solver = Solver(
            method,
            steps=steps,
            max_step=max_step,
            rtol=rtol,
            atol=atol,
            gradient=gradient,
            backend=backend,
        )

    @property
    def measurability(self) -> Measurability:
        """CONTINUOUS: h goes on between rows, from the past alone."""
        return Measurability.CONTINUOUS

    def trajectory(self, rows: Rows, h0: Tensor, streams: Sequence[Any]) -> Tensor:
        """All h after rows, (row, stream, hidden)."""
        seen = self._sees(rows)
        if self._at_once(rows, h0):
            return self._by_rows(seen, rows.clock, h0[:, 0], streams)
        h, after = h0[:, 0], []
        for row in range(len(seen)):
            if row:
                h = self._go_on(h, rows.clock[row - 1], rows.clock[row], streams)
            h = self.cell(seen[row], h)
            after.append(h)
        return torch.stack(after)

    def update(self, row: Rows, h: Tensor) -> Tensor:
        """(stream, 1, hidden) after the GRU update."""
        return self.cell(self._sees(row), h[:, 0])[:, None]

    def carry(self, h: Tensor, since: Tensor, clock: Tensor, streams: Sequence[Any]) -> Tensor:
        return self._go_on(h[:, 0], since, clock, streams)[:, None]

    def legs_alike(self) -> str | None:
        """Why legs do not all take the same steps with exact gradients in code of our choice; None: they do."""
        solver = self.solver
        if solver.tolerance is not None or solver.max_step is not None:
            return "the number of steps depends on the data"
        if solver.gradient != "exact":
            return f"gradient='{solver.gradient}' is found leg by leg"
        if (unlike := not_plain(self.field)) is not None:
            return unlike
        if type(self.cell) is not nn.GRUCell or has_hooks(self.cell):
            return f"the cell is a {type(self.cell).__name__} of its own kind, or has hooks"
        return None if solver.backend == "auto" else f"backend='{solver.backend}' was asked for"

    def _at_once(self, rows: Rows, h0: Tensor) -> bool:
        """Whether all rows are gone through at once: on a GPU, which would wait for every leg's code."""
        return h0.is_cuda and self.legs_alike() is None and not rows.clock.requires_grad

    def _by_rows(self, seen: Tensor, clock: Tensor, h0: Tensor, streams: Sequence[Any]) -> Tensor:
        """`trajectory` in one go."""
        solver = self.solver
        gaps = self.scale_gap(clock.diff(dim=0, prepend=clock[:1])).to(h0.dtype)
        after, before = ode_recurrence(
            seen, gaps, h0, self.cell, self.field, solver.table, solver.steps
        )

        def where(place: int, row: float) -> str:
            return f"stream {streams[place]!r} at time {float(clock[int(row), place]):g}"

        # A gate shuts out what is infinite: states are looked at before they come to one.
        check_states(before, where)
        evaluations = (len(seen) - 1) * solver.steps * solver.table.stages
        note_evaluations(torch.full((len(h0),), evaluations))
        return after

    def _sees(self, rows: Rows) -> Tensor:
        """(..., stream, 2 * channel): values carried forward, and the mask."""
        return torch.cat([rows.values, rows.mask], -1)

    def _go_on(self, h: Tensor, since: Tensor, clock: Tensor, streams: Sequence[Any]) -> Tensor:
        """h (stream, hidden) after the time leg from `since` to `clock` (stream,)."""
        solver = self.solver
        gaps = clock - since
        time_steps = None
        if solver.max_step is not None:
            time_steps = steps_for(gaps, solver.max_step, streams)[None]
        time = self.scale_gap(gaps).to(h.dtype)
        leg = time_segment(
            time, 1, steps=solver.steps, max_step=solver.max_step, time_steps=time_steps
        )

        def where(place: int, s: float) -> str:
            return f"stream {streams[place]!r} at time {float(clock[place]):g}"

        field = as_field(self.field, self.hidden, 1)
        done = solve_problem(solver.problem(leg, field, h, where))
        note_evaluations(done.nfe)
        return done.z[1]
