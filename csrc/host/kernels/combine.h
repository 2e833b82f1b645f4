// SPDX-License-Identifier: Apache-2.0
// The combining functions of reduce, reduce_window, scatter and cumulative, over any element type.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "host/combine_functions.h"
#include "host/kernels/dtype_map.h"
#include "host/kernels/step_context.h"

namespace nxl::host {

enum class Combine { kAdd, kMultiply, kMaximum, kMinimum, kAnd, kOr, kXor };

inline Combine combine_of(const StepContext& step) {
  const std::string kind = step.text("kind");
  if (kind == "add") return Combine::kAdd;
  if (kind == "multiply") return Combine::kMultiply;
  if (kind == "maximum") return Combine::kMaximum;
  if (kind == "minimum") return Combine::kMinimum;
  if (kind == "and") return Combine::kAnd;
  if (kind == "or") return Combine::kOr;
  if (kind == "xor") return Combine::kXor;
  step.fail(ErrorKind::kInvalid,
            "attribute `kind` is `" + kind + "`; known are add multiply maximum minimum and or xor");
}

// Calls visit.template operator()<T, Op>() for the element type and the combining function; refuses pairs that have no
// meaning (bitwise on floats, order on complex numbers).
template <typename Visit>
void visit_combine(const StepContext& step, Combine combine, at::ScalarType dtype, Visit visit) {
  bool found = false;
  const auto over = [&]<typename List, typename Op>(List list, Op) {
    found = visit_type(list, dtype, [&]<typename T>() { visit.template operator()<T, Op>(); });
  };
  using Bits = Concat<IntegerTypes, BoolType>;
  using Ordered = Concat<RealTypes, Float8Types>;
  using Numbers = Concat<NumberTypes, Float8Types>;
  switch (combine) {
    case Combine::kAdd:
      over(Numbers{}, CombineAdd{});
      break;
    case Combine::kMultiply:
      over(Numbers{}, CombineMultiply{});
      break;
    case Combine::kMaximum:
      over(Ordered{}, CombineMaximum{});
      break;
    case Combine::kMinimum:
      over(Ordered{}, CombineMinimum{});
      break;
    case Combine::kAnd:
      over(Bits{}, CombineAnd{});
      break;
    case Combine::kOr:
      over(Bits{}, CombineOr{});
      break;
    case Combine::kXor:
      over(Bits{}, CombineXor{});
      break;
  }
  if (!found) step.unsupported(nxl::detail::concat("this kind is not defined for dtype ", c10::toString(dtype)));
}

}  // namespace nxl::host
