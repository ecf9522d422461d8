#include "windlass/model/onnx/dimensions.h"

#include "windlass/model/onnx/import_testing.h"

namespace windlass {
namespace {

using namespace proto;
using testing::HasSubstr;

OnnxValue value(DType dtype, size_t rank) {
  return {"in", dtype, true, std::vector<OnnxDimension>(rank)};
}

TEST(Dimensions, AreClassifiedByName) {
  const OnnxValue image = value(DType::F32, 4);
  for (const auto& name : {"batch", "Batch_Size", "N", "b", "num_batches"})
    EXPECT_EQ(classify_dimension(name, image, 3), DimensionKind::Batch) << name;
  for (const auto& name : {"seq", "sequence_length", "time", "src_len", "num_tokens", "T", "s"})
    EXPECT_EQ(classify_dimension(name, image, 0), DimensionKind::Sequence) << name;
  for (const auto& name : {"height", "image_width", "H", "w"})
    EXPECT_EQ(classify_dimension(name, image, 0), DimensionKind::Image) << name;
}

TEST(Dimensions, AreClassifiedByPlaceIfTheNameSaysNothing) {
  const OnnxValue image = value(DType::F32, 4), ids = value(DType::I64, 2);
  const OnnxValue features = value(DType::F32, 3), rows = value(DType::F32, 2);
  for (const auto& name : {"", "unk__7", "s0", "token_type_ids_dynamic_axes_1"}) {
    EXPECT_EQ(classify_dimension(name, image, 0), DimensionKind::Batch) << name;
    EXPECT_EQ(classify_dimension(name, image, 1), DimensionKind::Other) << name;
    EXPECT_EQ(classify_dimension(name, image, 2), DimensionKind::Image) << name;
    EXPECT_EQ(classify_dimension(name, ids, 1), DimensionKind::Sequence) << name;
    EXPECT_EQ(classify_dimension(name, features, 1), DimensionKind::Sequence) << name;
    EXPECT_EQ(classify_dimension(name, features, 2), DimensionKind::Other) << name;
    EXPECT_EQ(classify_dimension(name, rows, 1), DimensionKind::Other) << name;
  }
}

// x of `dims`, of which the last is 3, times a matrix.
std::string network(const std::vector<Dim>& dims) {
  std::vector<Dim> out = dims;
  for (size_t i = 0; i + 1 < out.size(); ++i) out[i] = Dim("any");
  return proto::model(input("x", dims) + output("y", out) + counting("w", {3, 3}) +
                      node("MatMul", {"x", "w"}, {"y"}));
}

Shape input_shape(const std::string& file, const ModelOptions& options) {
  const Model model = import(file, options);
  return model.graph[model.graph.inputs[0]].type.shape;
}

TEST(Dimensions, TakeTheirFlagWhateverTheAxis) {
  EXPECT_EQ(input_shape(network({"seq", "batch", 3}), {.batch = 4, .sequence = 7}),
            (Shape{7, 4, 3}));
  EXPECT_EQ(input_shape(network({"batch", "height", "width", 3}), {.batch = 2, .image = 9}),
            (Shape{2, 9, 9, 3}));
  EXPECT_EQ(input_shape(network({"", "", 3}), {.batch = 2, .sequence = 5}), (Shape{2, 5, 3}));
}

TEST(Dimensions, NamesComeBeforeFlags) {
  EXPECT_EQ(input_shape(network({"batch", "seq", 3}), {.batch = 2, .dimensions = {{"seq", 6}}}),
            (Shape{2, 6, 3}));
  EXPECT_EQ(input_shape(network({"batch", "", 3}), {.dimensions = {{"batch", 2}, {"x:1", 8}}}),
            (Shape{2, 8, 3}));
}

TEST(Dimensions, OfOneNameHaveOneSize) {
  EXPECT_EQ(input_shape(network({"n", "k", "n", 3}), {.batch = 2, .dimensions = {{"k", 5}}}),
            (Shape{2, 5, 2, 3}));
}

TEST(Dimensions, OnlyTheBatchHasADefault) {
  const Model model = import(network({"batch", 3}));
  EXPECT_EQ(model.graph[model.graph.inputs[0]].type.shape, (Shape{1, 3}));
  EXPECT_TRUE(has_note(model, "dimension \"batch\" is taken as the batch and set to 1"));
  EXPECT_THAT(
      import_error(network({"batch", "seq", 3})),
      HasSubstr("dimension 1 of input \"x\" is open; give its size with --seq N or --dim seq=N"));
  EXPECT_THAT(import_error(network({"batch", "h", "w", 3})), HasSubstr("--image N or --dim h=N"));
  EXPECT_THAT(import_error(network({2, 4, "k", 4, 3})), HasSubstr("with --dim k=N"));
}

TEST(Dimensions, SizesThatNothingTakesAreErrors) {
  const auto error = [](const std::vector<Dim>& dims, const ModelOptions& options) {
    return import_error(network(dims), ErrorKind::Input, options);
  };
  EXPECT_THAT(error({2, 3}, {.batch = 4}), HasSubstr("fixes dimension 0 of input \"x\" at 2"));
  EXPECT_EQ(error({2, 3}, {.batch = 2}), "no error");
  EXPECT_THAT(error({2, 3}, {.sequence = 4}), HasSubstr("--seq cannot be chosen: the file fixes"));
  EXPECT_THAT(error({"batch", 3}, {.image = 4}),
              HasSubstr("--image cannot be chosen: the file leaves only these open: batch"));
  EXPECT_THAT(error({"batch", 3}, {.dimensions = {{"bach", 4}}}),
              HasSubstr("no open dimension is called \"bach\" (did you mean \"batch\"?)"));
}

}  // namespace
}  // namespace windlass
