#include "windlass/runtime/kernels/autograd_peer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

namespace windlass {
namespace {

using reference::OpCase;

struct PeerResult {
  Tensors outputs;
  Tensors gradients;  // by input; undefined where there is none
};

PeerResult run_peer(const OpCase& c, const GradientRule& rule, const AutogradPeer& peer,
                    const std::vector<Array>& output_gradients) {
  PeerResult result;
  Tensors inputs, leaves;
  std::vector<size_t> leaf_inputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const DType dtype = c.inputs[i].dtype;
    if (dtype == DType::None) {
      inputs.emplace_back();
      continue;
    }
    inputs.push_back(to_tensor(c.inputs[i].array, is_float(dtype) ? DType::F32 : dtype));
    if (rule.inputs[i] == GradientSource::None) continue;
    inputs.back().set_requires_grad(true);
    leaves.push_back(inputs.back());
    leaf_inputs.push_back(i);
  }
  result.outputs = peer.run({c.attrs, inputs, {c.random.seed, c.random.op}});
  Tensors roots, arriving;
  for (size_t i = 0; i < result.outputs.size(); ++i) {
    if (!result.outputs[i].defined() || !result.outputs[i].requires_grad()) continue;
    roots.push_back(result.outputs[i]);
    arriving.push_back(to_tensor(output_gradients[i], DType::F32));
  }
  if (roots.empty()) return result;
  const Tensors found = torch::autograd::grad(roots, leaves, arriving, /*retain_graph=*/false,
                                              /*create_graph=*/false, /*allow_unused=*/true);
  result.gradients.resize(c.inputs.size());
  for (size_t k = 0; k < found.size(); ++k) {
    const size_t i = leaf_inputs[k];
    result.gradients[i] = found[k].defined() ? found[k] : torch::zeros_like(leaves[k]);
  }
  return result;
}

void check_case(const OpCase& c, const AutogradPeer& peer, DType dtype) {
  const Signature signature = c.signature();
  std::vector<bool> wanted;
  for (const auto& input : c.inputs) wanted.push_back(is_float(input.dtype));
  const OpInfo& info = op_info(c.kind);
  for (size_t i = 0; i < wanted.size(); ++i)
    if (info.gradient(signature, wanted).inputs[i] == GradientSource::None) wanted[i] = false;
  const GradientRule rule = info.gradient(signature, wanted);
  const std::vector<Array> arriving = output_gradients(c, signature, dtype);

  const KernelForward forward = forward_kernel(c, signature);
  const PeerResult expected = run_peer(c, rule, peer, arriving);
  Tensors gradients(arriving.size()), saved;
  for (size_t i = 0; i < expected.outputs.size(); ++i) {
    if (!expected.outputs[i].defined()) continue;
    expect_close(forward.outputs[i], to_array(expected.outputs[i].detach()), dtype,
                 fmt::format("output {}", i));
    if (expected.outputs[i].requires_grad())
      gradients[i] = to_tensor(arriving[i], signature.outputs[i].dtype);
  }
  for (const SavedRef& ref : rule.saved) {
    const auto i = static_cast<size_t>(ref.index);
    saved.push_back(ref.source == SavedRef::Source::Input    ? forward.inputs.at(i)
                    : ref.source == SavedRef::Source::Output ? forward.outputs.at(i)
                                                             : forward.auxiliaries.at(i));
  }
  if (expected.gradients.empty()) return;  // a function without derivative
  const Tensors found = backward_kernel(c, signature, {rule, wanted, gradients, saved});
  for (size_t i = 0; i < found.size(); ++i) {
    if (!wanted[i] || rule.inputs[i] != GradientSource::Computed) continue;
    expect_close(found[i], to_array(expected.gradients[i]), dtype, fmt::format("gradient {}", i));
  }
}

}  // namespace

void expect_agrees_with_autograd(const AutogradPeer& peer, DType dtype) {
  for (const OpCase& c : kernel_cases(peer.kind, dtype)) {
    SCOPED_TRACE(c.name);
    try {
      check_case(c, peer, dtype);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace windlass
