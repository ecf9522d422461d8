#include "windlass/runtime/kernels/errors.h"

#include <new>
#include <stdexcept>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {
namespace {

template <class Run>
Error error_of(Run&& run) {
  try {
    run();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error(ErrorKind::Internal, "");
}

template <class Exception>
Error translated(const Exception& exception) {
  return error_of([&] {
    try {
      throw exception;
    } catch (...) {
      rethrow_within("Conv");
    }
  });
}

// A 2 x 3 matrix times a 4 x 5 one, and their gradients: libtorch refuses both.
TEST(Errors, OfLibtorchNameTheOpAndHaveOneLine) {
  const Attrs attrs = MatMulAttrs{};
  const std::vector<at::Tensor> operands = {at::ones({2, 3}), at::ones({4, 5})};
  std::vector<Result> outputs = {Result({DType::F32, {2, 5}})}, none;
  const Error forward = error_of([&] {
    ForwardCall call = {.kind = OpKind::MatMul,
                        .attributes = attrs,
                        .inputs = operands,
                        .outputs = outputs,
                        .auxiliaries = none};
    run_forward(call);
  });
  const std::vector<TensorType> types = {{DType::F32, {2, 3}}, {DType::F32, {4, 5}}};
  const std::vector<SavedRef> refs = {{SavedRef::Source::Input, 0}, {SavedRef::Source::Input, 1}};
  const std::vector<at::Tensor> gradients = {at::ones({7, 11})};
  std::vector<Result> results = {Result(types[0]), Result(types[1])};
  const Error backward = error_of([&] {
    BackwardCall call = {.kind = OpKind::MatMul,
                         .attributes = attrs,
                         .input_types = types,
                         .gradients = gradients,
                         .saved_refs = refs,
                         .saved = operands,
                         .results = results};
    run_backward(call);
  });
  for (const Error& error : {forward, backward}) {
    EXPECT_EQ(error.kind(), ErrorKind::Runtime);
    EXPECT_THAT(error.message(), testing::StartsWith("MatMul: libtorch: "));
    EXPECT_EQ(error.message().find('\n'), std::string::npos) << error.message();
    EXPECT_EQ(error.message().find("raised from"), std::string::npos) << error.message();
  }
}

TEST(Errors, OfOtherLibraries) {
  const Error refused = translated(std::runtime_error("could not create a primitive\n#0 frame"));
  EXPECT_EQ(refused.kind(), ErrorKind::Runtime);
  EXPECT_EQ(refused.message(), "Conv: could not create a primitive");
  const Error memory = translated(std::bad_alloc());
  EXPECT_EQ(memory.kind(), ErrorKind::OutOfMemory);
  EXPECT_EQ(memory.message(), "Conv: the system has no memory to give");
  const Error own = translated(Error(ErrorKind::Input, "token 5 is out of range"));
  EXPECT_EQ(own.kind(), ErrorKind::Input);
  EXPECT_EQ(own.message(), "Conv: token 5 is out of range");
}

}  // namespace
}  // namespace windlass
