// SPDX-License-Identifier: Apache-2.0
// The fused LSTM and GRU cells that torch's recurrent layers call on any accelerator; the CPU has no kernel for them.
// The workspace that a forward hands to its backward is ours to define.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace nxl::ops {
namespace {

using at::Tensor;
using std::optional;

Tensor with_bias(const Tensor& gates, const optional<Tensor>& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

Tensor or_zeros(const optional<Tensor>& grad, const Tensor& like) {
  return grad.has_value() && grad->defined() ? *grad : at::zeros_like(like);
}

// d sigmoid and d tanh in terms of their results.
Tensor through_sigmoid(const Tensor& grad, const Tensor& y) { return grad * y * (1 - y); }
Tensor through_tanh(const Tensor& grad, const Tensor& y) { return grad * (1 - y * y); }

// Returns (hidden, cell, workspace); the workspace holds the activated gates: input, forget, cell, output.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const optional<Tensor>& input_bias, const optional<Tensor>& hidden_bias) {
  const auto gates = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const Tensor i = gates[0].sigmoid(), f = gates[1].sigmoid(), g = gates[2].tanh(), o = gates[3].sigmoid();
  const Tensor cy = f * cx + i * g;
  return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const optional<Tensor>& grad_hy, const optional<Tensor>& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  const auto gates = workspace.chunk(4, 1);
  const Tensor &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
  const Tensor hidden = or_zeros(grad_hy, cy);
  const Tensor tanh_cy = cy.tanh();
  const Tensor cell = through_tanh(hidden * o, tanh_cy) + or_zeros(grad_cy, cy);
  const Tensor grad_gates = at::cat({through_sigmoid(cell * g, i), through_sigmoid(cell * cx, f),
                                     through_tanh(cell * i, g), through_sigmoid(hidden * tanh_cy, o)},
                                    1);
  return {grad_gates, cell * f, has_bias ? grad_gates.sum(0) : Tensor()};
}

// Returns (hidden, workspace); the workspace holds reset, update and new gate, the old hidden state, and the hidden
// part of the new gate.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const optional<Tensor>& input_bias, const optional<Tensor>& hidden_bias) {
  const auto input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor r = (input[0] + hidden[0]).sigmoid();
  const Tensor z = (input[1] + hidden[1]).sigmoid();
  const Tensor n = (input[2] + r * hidden[2]).tanh();
  return {(hx - n) * z + n, at::cat({r, z, n, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const Tensor &r = saved[0], &z = saved[1], &n = saved[2], &hx = saved[3], &hidden_new = saved[4];
  const Tensor grad_n = through_tanh(grad_hy * (1 - z), n);
  const Tensor grad_r = through_sigmoid(grad_n * hidden_new, r);
  const Tensor grad_z = through_sigmoid(grad_hy * (hx - n), z);
  const Tensor grad_input = at::cat({grad_r, grad_z, grad_n}, 1);
  const Tensor grad_hidden = at::cat({grad_r, grad_z, grad_n * r}, 1);
  return {grad_input, grad_hidden, grad_hy * z, has_bias ? grad_input.sum(0) : Tensor(),
          has_bias ? grad_hidden.sum(0) : Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace
}  // namespace nxl::ops
