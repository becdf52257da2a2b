"""`MLPField`: where its weights may start."""

import pytest
import torch

from onlinecde.solvers import MLPField


@pytest.mark.parametrize("activation", ["silu", "relu", "softplus"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_restoring_start_pulls_back_along_its_channels_and_stands_still_along_others(
    activation, depth
):
    field = MLPField(3, 5, width=8, depth=depth, activation=activation).double()
    field.start_restoring([0, 4], rate=0.7, spread=0.0)
    z = torch.randn(6, 3, dtype=torch.float64)
    found = field.matrix(z).detach()
    pulled = torch.tanh(-0.7 * z)
    for channel in range(5):
        expected = pulled if channel in (0, 4) else torch.zeros_like(z)
        torch.testing.assert_close(found[:, :, channel], expected)


def test_a_restoring_start_needs_room_for_z_and_its_opposite():
    with pytest.raises(ValueError, match="width 6 or more"):
        MLPField(3, 2, width=5).start_restoring([0], 1.0)
    with pytest.raises(ValueError, match="act"):
        MLPField(3, 2, width=6, activation="tanh").start_restoring([0], 1.0)
