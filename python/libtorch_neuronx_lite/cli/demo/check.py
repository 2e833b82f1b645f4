# SPDX-License-Identifier: Apache-2.0
"""Whether an answer agrees with CPU eager, which is replayed on the very ids that the device chose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

# Largest difference of any logit, as a share of the row's largest magnitude. float32: sums of up to 1,536 products in
# another order, over 30 layers. bfloat16: 8 bits of mantissa; over 21 prompts of 48 tokens the device differs from CPU
# eager by at most 0.047, and CPU eager from itself, a padded against an unpadded prefill, by at most 0.066.
LOGIT_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 6e-2}


@dataclass(frozen=True)
class Agreement:
    """The verdict on one answer.

    `identical`: every id is eager's argmax. `ties` (bfloat16 only): the others lie within one bfloat16 step of eager's
    top logit. `diverges`: an id does not, or a logit is further off than `logit_tolerance`.
    """

    verdict: Literal["identical", "ties", "diverges"]
    tokens_identical: int  # ids that are eager's argmax
    first_divergence: int | None  # index of the first id that is not, or whose logits are out of tolerance
    tied_positions: tuple[int, ...]
    logit_error: float  # largest difference, as a share of its row's largest magnitude
    logit_tolerance: float


def bfloat16_step(value: float) -> float:
    """The distance between neighbouring bfloat16 numbers at `value`: 8 significant bits, the first one implied."""
    if value == 0.0 or not math.isfinite(value):
        return 0.0
    return math.ldexp(1.0, math.frexp(abs(value))[1] - 8)


def compare(
    tokens: Sequence[int],
    device_logits: Sequence[torch.Tensor],
    eager_logits: Sequence[torch.Tensor],
    dtype: torch.dtype,
) -> Agreement:
    """Judges `tokens`; both lists of logits have one row [1, vocab] per token, on the CPU, from the same context."""
    if not len(tokens) == len(device_logits) == len(eager_logits):
        raise ValueError(f"{len(tokens)} tokens, {len(device_logits)} and {len(eager_logits)} rows of logits")
    tolerance = LOGIT_TOLERANCE[dtype]
    ties: list[int] = []
    wrong: list[int] = []
    identical = 0
    worst = 0.0
    for position, (token, device_row, eager_row) in enumerate(zip(tokens, device_logits, eager_logits, strict=True)):
        ours, eager = device_row.flatten().float(), eager_row.flatten().float()
        error = float((ours - eager).abs().max() / eager.abs().max())
        worst = max(worst, error) if math.isfinite(error) else math.inf
        top = float(eager.max())
        if token == int(eager.argmax()):
            identical += 1
        elif dtype is torch.bfloat16 and float(eager[token]) >= top - bfloat16_step(top):
            ties.append(position)
        else:
            wrong.append(position)
        if not error <= tolerance and position not in wrong:
            wrong.append(position)
    verdict: Literal["identical", "ties", "diverges"] = "diverges" if wrong else "ties" if ties else "identical"
    return Agreement(
        verdict=verdict,
        tokens_identical=identical,
        first_divergence=min([*wrong, *ties], default=None),
        tied_positions=tuple(ties),
        logit_error=worst,
        logit_tolerance=tolerance,
    )
