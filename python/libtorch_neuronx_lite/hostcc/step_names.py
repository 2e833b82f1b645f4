# SPDX-License-Identifier: Apache-2.0
"""Names of the program's elementwise steps, which are StableHLO's and CHLO's own (docs/host-program.md)."""

from __future__ import annotations

# fmt: off
STABLEHLO_UNARY = (
    "abs", "cbrt", "ceil", "convert", "cosine", "count_leading_zeros", "exponential", "exponential_minus_one", "floor",
    "is_finite", "log", "log_plus_one", "logistic", "negate", "not", "popcnt", "round_nearest_afz",
    "round_nearest_even", "rsqrt", "sign", "sine", "sqrt", "tan", "tanh",
)
CHLO_UNARY = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i1e", "cosh", "digamma", "erf", "erf_inv", "erfc",
    "is_inf", "is_neg_inf", "is_pos_inf", "lgamma", "sinh", "tan",
)
STABLEHLO_BINARY = (
    "add", "and", "atan2", "divide", "maximum", "minimum", "multiply", "or", "power", "remainder", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "subtract", "xor",
)
CHLO_BINARY = ("next_after", "polygamma", "zeta")
# fmt: on

# Steps that read element i of the inputs (`fused`: its whole row) before they write element i of the output, and no
# other element after that: output and input may be one memory.
ELEMENTWISE = frozenset(
    [*STABLEHLO_UNARY, *CHLO_UNARY, *STABLEHLO_BINARY, *CHLO_BINARY, "compare", "select", "clamp", "fused"]
)
