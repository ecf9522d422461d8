// Contractions, windows, normalisation and recurrent layers: sizes beyond their blocks, fp16, fp32
// sums of 16-bit gradients, running statistics, threads.

#include <cmath>
#include <iterator>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/runtime/kernels/kernel_cases.h"

namespace windlass {
namespace {

using reference::CaseMaker;
using reference::OpCase;
using reference::Operand;

constexpr OpKind kDenseKinds[] = {
    OpKind::MatMul,
    OpKind::Linear,
    OpKind::GroupedLinear,
    OpKind::SlotLinear,
    OpKind::Conv,
    OpKind::Pool,
    OpKind::Resize,
    OpKind::BatchNorm,
    OpKind::LayerNorm,
    OpKind::RmsNorm,
    OpKind::GroupNorm,
    OpKind::Lstm,
    OpKind::LocalResponseNorm,
    OpKind::Gru,
};

RecurrentAttrs bidirectional(int64_t hidden) {
  RecurrentAttrs attrs;
  attrs.hidden = hidden;
  attrs.bidirectional = true;
  return attrs;
}

// Cases in which every kernel goes through more than one block, line, chunk or thread.
std::vector<OpCase> large_cases() {
  CaseMaker make(11);
  make.add("Linear", OpKind::Linear, LinearAttrs{},
           {make.uniform({3, 6000, 32}), make.uniform({40, 32}), make.uniform({40})});
  make.add("Linear input major", OpKind::Linear, LinearAttrs{true},
           {make.uniform({18000, 32}), make.uniform({32, 40}), Operand{}});
  make.add("MatMul", OpKind::MatMul, MatMulAttrs{false, true},
           {make.uniform({40, 24, 1000}), make.uniform({40, 8, 1000})});
  make.add("MatMul folded", OpKind::MatMul, MatMulAttrs{false, true},
           {make.uniform({4, 300, 20}), make.uniform({1, 30, 20})});
  make.add("MatMul broadcast first", OpKind::MatMul, MatMulAttrs{},
           {make.uniform({30, 20}), make.uniform({5, 20, 20})});
  make.add("Conv", OpKind::Conv, ConvAttrs{{2, 2}, {1, 1}, {0, 0}, {1, 1}, {}, 1, false},
           {make.uniform({2, 16, 16, 16}), make.uniform({16, 16, 3, 3}), make.uniform({16})});
  make.add("Conv depthwise", OpKind::Conv, ConvAttrs{{1, 1}, {1, 1}, {1, 1}, {1, 1}, {}, 16, false},
           {make.uniform({2, 16, 20, 20}), make.uniform({16, 1, 3, 3}), Operand{}});
  for (const PoolFn fn : {PoolFn::Max, PoolFn::Average}) {
    make.add("Pool large window", OpKind::Pool,
             PoolAttrs{fn, {17, 17}, {2, 3}, {1, 1}, {8, 1}, {0, 8}, true, true},
             {make.uniform({2, 3, 40, 50})});
    make.add("Pool global", OpKind::Pool, PoolAttrs{fn, {7, 7}, {1, 1}, {1, 1}, {0, 0}, {0, 0}},
             {make.uniform({2, 300, 7, 7})});
    make.add("Pool", OpKind::Pool, PoolAttrs{fn, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}},
             {make.uniform({2, 20, 56, 56})});
  }
  for (const ResizeMode mode : {ResizeMode::Nearest, ResizeMode::Linear})
    make.add("Resize", OpKind::Resize, ResizeAttrs{{7, 40, 30}, mode, ResizeCoordinates::HalfPixel},
             {make.uniform({2, 10, 4, 21, 50})});
  make.add("BatchNorm", OpKind::BatchNorm, BatchNormAttrs{},
           {make.uniform({8, 5, 20, 20}), make.uniform({5}), make.uniform({5}), make.uniform({5}),
            make.uniform({5}, 0.5, 2)});
  make.add("LayerNorm", OpKind::LayerNorm, LayerNormAttrs{1},
           {make.uniform({200, 301}), make.uniform({301}), make.uniform({301})});
  make.add("RmsNorm", OpKind::RmsNorm, LayerNormAttrs{1},
           {make.uniform({203, 301}), make.uniform({301})});
  make.add("GroupNorm", OpKind::GroupNorm, GroupNormAttrs{4},
           {make.uniform({4, 16, 10, 10}), make.uniform({16}), make.uniform({16})});
  make.add("LocalResponseNorm", OpKind::LocalResponseNorm, LrnAttrs{5, 0.1, 0.6, 1},
           {make.uniform({2, 30, 20, 30})});
  for (const OpKind kind : {OpKind::Lstm, OpKind::Gru}) {
    const int64_t rows = kind == OpKind::Lstm ? 64 : 48;
    std::vector<Operand> inputs = {make.uniform({40, 128, 8}), make.uniform({2, rows, 8}),
                                   make.uniform({2, rows, 16}), make.uniform({2, 2 * rows}),
                                   make.uniform({2, 128, 16})};
    if (kind == OpKind::Lstm) inputs.push_back(make.uniform({2, 128, 16}));
    make.add(kind == OpKind::Lstm ? "Lstm" : "Gru", kind, bidirectional(16), std::move(inputs));
  }
  return make.take();
}

// Every case in one of the types, by turns; in all of them where there is time.
TEST(DenseKernelsSlow, AgreeOnLargerSizes) {
  const DType dtypes[] = {DType::F32, DType::BF16, DType::F16};
  for (size_t type = 0; type < std::size(dtypes); ++type) {
    const DType dtype = dtypes[type];
    size_t number = 0;
    for (const OpCase& c : large_cases()) {
      if (hurried() && number++ % std::size(dtypes) != type) continue;
      SCOPED_TRACE(dtype_name(dtype));
      expect_agrees_with_reference(with_dtype(c, dtype), dtype);
    }
  }
}

class DenseKernelTest : public testing::TestWithParam<OpKind> {};

TEST_P(DenseKernelTest, AgreesWithTheReferenceInFp16) {
  for (const OpCase& c : kernel_cases(GetParam(), DType::F16)) {
    expect_agrees_with_reference(c, DType::F16);
    if (HasFailure()) return;
  }
}

// Gradients of 16-bit ops may be collected in fp32.
TEST_P(DenseKernelTest, AddsToFp32Sums) {
  for (const OpCase& c : kernel_cases(GetParam(), DType::BF16)) {
    SCOPED_TRACE(c.name);
    const Signature signature = c.signature();
    std::vector<bool> wanted;
    for (const Operand& input : c.inputs) wanted.push_back(is_float(input.dtype));
    const OpInfo& info = op_info(c.kind);
    for (size_t i = 0; i < wanted.size(); ++i)
      if (info.gradient(signature, wanted).inputs[i] == GradientSource::None) wanted[i] = false;
    const GradientRule rule = info.gradient(signature, wanted);
    const KernelForward forward = forward_kernel(c, signature);
    Tensors saved, arriving, sums(wanted.size());
    for (const SavedRef& ref : rule.saved) {
      const auto i = static_cast<size_t>(ref.index);
      saved.push_back(ref.source == SavedRef::Source::Input    ? forward.inputs.at(i)
                      : ref.source == SavedRef::Source::Output ? forward.outputs.at(i)
                                                               : forward.auxiliaries.at(i));
    }
    const std::vector<Array> gradients = output_gradients(c, signature, DType::BF16);
    for (size_t i = 0; i < gradients.size(); ++i)
      arriving.push_back(to_tensor(gradients[i], signature.outputs[i].dtype));
    const KernelBackward backward{rule, wanted, arriving, saved};
    const Tensors fresh = backward_kernel(c, signature, backward);
    for (size_t i = 0; i < wanted.size(); ++i)
      if (wanted[i]) sums[i] = to_tensor(Array(signature.shape(i), 0.5), DType::F32);
    const Tensors added = backward_kernel(c, signature, backward, sums);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i]) continue;
      Array expected = to_array(fresh[i]);
      for (double& value : expected.values) value += 0.5;
      expect_close(added[i], expected, DType::BF16, fmt::format("sum of gradient {}", i));
    }
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, DenseKernelTest, testing::ValuesIn(kDenseKinds),
                         [](const auto& test) { return std::string(op_info(test.param).name); });

// mean = 0.9 * 0.5 + 0.1 * 3 = 0.75; the unbiased variance of 1, 3, 5 is 4, so
// variance = 0.9 * 2 + 0.1 * 4 = 2.2.
TEST(DenseKernels, BatchNormUpdatesRunningStatistics) {
  const auto floats = [](DType dtype, Shape shape, std::vector<double> values) {
    return Operand{dtype, Array(std::move(shape), std::move(values))};
  };
  for (const DType x : {DType::F32, DType::BF16, DType::F16}) {
    for (const DType parameters : {x, DType::F32}) {
      const OpCase c{
          "",
          OpKind::BatchNorm,
          BatchNormAttrs{1e-5, 0.1, true},
          {floats(x, {3, 1}, {1, 3, 5}), floats(parameters, {1}, {1}), floats(parameters, {1}, {0}),
           floats(parameters, {1}, {0.5}), floats(parameters, {1}, {2})},
          {}};
      const double tolerance = parameters == DType::F32 ? 1e-6 : 1e-2;
      const KernelForward first = forward_kernel(c, c.signature());
      EXPECT_NEAR(to_array(first.inputs[3]).values[0], 0.75, tolerance) << dtype_name(x);
      EXPECT_NEAR(to_array(first.inputs[4]).values[0], 2.2, tolerance) << dtype_name(x);
      const KernelForward again = forward_kernel(c, c.signature(), {.again = true});
      EXPECT_EQ(to_array(again.inputs[3]).values[0], 0.5);
      EXPECT_EQ(to_array(again.inputs[4]).values[0], 2);
      EXPECT_TRUE(at::equal(first.outputs[0], again.outputs[0]));
    }
  }
}

TEST(DenseKernels, TheNumberOfThreadsDoesNotMatter) {
  const int threads = at::get_num_threads();
  for (const OpCase& c : large_cases()) {
    if (c.kind == OpKind::Linear || c.kind == OpKind::MatMul || c.kind == OpKind::Conv) continue;
    SCOPED_TRACE(c.name);
    at::set_num_threads(1);
    const KernelForward one = forward_kernel(c, c.signature());
    at::set_num_threads(3);
    const KernelForward three = forward_kernel(c, c.signature());
    for (size_t i = 0; i < one.outputs.size(); ++i)
      EXPECT_TRUE(at::equal(one.outputs[i], three.outputs[i])) << "output " << i;
  }
  at::set_num_threads(threads);
}

TEST(DenseKernels, NotANumberIsAMaximum) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const OpCase c{"",
                 OpKind::Pool,
                 PoolAttrs{PoolFn::Max, {3}, {3}, {1}, {0}, {0}},
                 {{DType::F32, Array({1, 1, 6}, {1, kNan, 5, -3, -1, -2})}},
                 {}};
  const KernelForward found = forward_kernel(c, c.signature());
  EXPECT_TRUE(std::isnan(to_array(found.outputs[0]).values[0]));
  EXPECT_EQ(to_array(found.outputs[0]).values[1], -1);
  EXPECT_THAT(to_array(found.auxiliaries[0]).values, testing::ElementsAre(1, 1));
}

TEST(DenseKernels, OneWindowMayBeTooLargeInCeilMode) {
  for (const PoolFn fn : {PoolFn::Max, PoolFn::Average}) {
    PoolAttrs attrs = {fn, {3, 2}, {2, 3}, {1, 1}, {0, 1}, {0, 1}};
    attrs.ceil_mode = true;
    const OpCase c{
        "", OpKind::Pool, attrs, {{DType::F32, Array({1, 1, 2, 3}, {1, 7, 3, 4, 5, 6})}}, {}};
    expect_agrees_with_reference(c, DType::F32);
  }
}

// PyTorch's std of a constant row and its cosine similarity of a row of zeros, which exporters
// write as roots, have gradients.
TEST(DenseKernels, TheRootIsFlatAtZero) {
  const OpCase c{
      "", OpKind::Unary, UnaryAttrs{UnaryFn::Sqrt}, {{DType::F32, Array({3}, {4, 0, 0})}}, {}};
  expect_agrees_with_reference(c, DType::F32);
}

TEST(DenseKernels, RowsMustHaveAnExpert) {
  const OpCase c{"",
                 OpKind::GroupedLinear,
                 NoAttrs{},
                 {{DType::F32, Array({2, 1}, 1)},
                  {DType::F32, Array({2, 1, 1}, 1)},
                  {DType::I64, Array({2, 1}, {1, 2})}},
                 {}};
  try {
    forward_kernel(c, c.signature());
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input);
    EXPECT_THAT(error.what(),
                testing::StartsWith("GroupedLinear: row 1 is for expert 2, expected 0 to 1"));
  }
}

// More rows than slots are an error that says what to do; nothing is dropped.
TEST(DenseKernels, RowsMustHaveASlot) {
  const OpCase c{"",
                 OpKind::Dispatch,
                 SlotAttrs{3, 4, 2},
                 {{DType::F32, Array({4, 1}, 1)}, {DType::I64, Array({4, 1}, {1, 2, 1, 1})}},
                 {}};
  try {
    forward_kernel(c, c.signature());
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input);
    EXPECT_THAT(error.what(), testing::StartsWith("Dispatch: expert 1 is chosen more than 2 times "
                                                  "for 4 tokens"));
    EXPECT_THAT(error.what(), testing::HasSubstr("--expert-capacity"));
  }
}

}  // namespace
}  // namespace windlass
