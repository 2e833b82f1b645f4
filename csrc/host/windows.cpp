// SPDX-License-Identifier: Apache-2.0
// Checked arithmetic on strided windows.
#include "host/windows.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/checked.h"
#include "core/error.h"

namespace nxl::host {

Extent checked_extent(const Value& value, uint64_t buffer_bytes, const std::string& what) {
  NXL_CHECK(value.shape.size() == value.strides.size(), kInvalid, what, ": ", value.shape.size(), " sizes and ",
            value.strides.size(), " strides");
  NXL_CHECK(value.offset >= 0, kInvalid, what, ": offset ", value.offset, " is negative");
  uint64_t count = 1;
  bool has_elements = true;
  for (size_t i = 0; i < value.shape.size(); ++i) {
    NXL_CHECK(value.shape[i] >= 0 && value.strides[i] >= 0, kInvalid, what, ": dimension ", i, " has size ",
              value.shape[i], " and stride ", value.strides[i], "; both must be >= 0");
    if (value.shape[i] == 0) has_elements = false;
    // A broadcast repeats elements, so a count can be far larger than the buffer; it must still be a count.
    const auto product = checked_mul(count, std::max<uint64_t>(static_cast<uint64_t>(value.shape[i]), 1));
    NXL_CHECK(product && *product <= uint64_t{INT64_MAX} / 16, kInvalid, what, ": the element count overflows");
    count = *product;
  }
  std::optional<uint64_t> last = static_cast<uint64_t>(value.offset);
  for (size_t i = 0; has_elements && last && i < value.shape.size(); ++i) {
    const auto step = checked_mul(static_cast<uint64_t>(value.shape[i] - 1), static_cast<uint64_t>(value.strides[i]));
    last = step ? checked_add(*last, *step) : std::nullopt;
  }
  const uint64_t size = dtype_size(value.dtype);
  const auto begin = checked_mul(static_cast<uint64_t>(value.offset), size);
  const auto elements = last && has_elements ? checked_add(*last, 1) : last;
  const auto end = elements ? checked_mul(*elements, size) : std::nullopt;
  NXL_CHECK(begin && end && *begin <= buffer_bytes && *end <= buffer_bytes, kInvalid, what,
            ": the window leaves its buffer of ", buffer_bytes, " bytes");
  return has_elements ? Extent{*begin, *end} : Extent{*begin, *begin};
}

bool elements_disjoint(const Value& value) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (size_t i = 0; i < value.shape.size(); ++i) {
    if (value.shape[i] == 0) return true;
    if (value.shape[i] > 1) dims.emplace_back(value.strides[i], value.shape[i]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;  // elements; cannot overflow once checked_extent has passed
  for (const auto& [stride, size] : dims) {
    if (stride < extent) return false;
    extent += stride * (size - 1);
  }
  return true;
}

namespace {

constexpr uint64_t kMaxMarkedBytes = 16u << 20;

// Calls visit(byte) with the first byte of every element, relative to the buffer.
template <typename Visit>
void for_each_element(const Value& value, size_t dim, int64_t element, const Visit& visit) {
  if (dim == value.shape.size()) return visit(static_cast<uint64_t>(element) * dtype_size(value.dtype));
  for (int64_t i = 0; i < value.shape[dim]; ++i) {
    for_each_element(value, dim + 1, element + i * value.strides[dim], visit);
  }
}

}  // namespace

bool windows_interleave(const Value& left, uint64_t left_begin, const Value& right, uint64_t right_begin) {
  uint64_t begin = UINT64_MAX;
  uint64_t end = 0;
  for (const auto& [value, start] : {std::pair(&left, left_begin), std::pair(&right, right_begin)}) {
    const Extent extent = checked_extent(*value, UINT64_MAX, "value");
    begin = std::min(begin, start + extent.begin);
    end = std::max(end, start + extent.end);
  }
  if (end - begin > kMaxMarkedBytes || !elements_disjoint(left) || !elements_disjoint(right)) return false;
  std::vector<bool> marked(end - begin);
  bool shared = false;
  for (const auto& [value, start] : {std::pair(&left, left_begin), std::pair(&right, right_begin)}) {
    for_each_element(*value, 0, value->offset,
                     [&, first = start - begin, size = dtype_size(value->dtype)](uint64_t at) {
                       for (uint64_t byte = first + at; byte < first + at + size; ++byte) {
                         shared = shared || marked[byte];
                         marked[byte] = true;
                       }
                     });
  }
  return !shared;
}

}  // namespace nxl::host
