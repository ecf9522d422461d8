// Which loss an imported model is trained with.

#include "windlass/model/onnx/import_testing.h"

namespace windlass {
namespace {

using namespace proto;
using testing::HasSubstr;

// x of `shape` through a 3-by-3 product over its last axis, then `op` where one is named.
std::string scorer(const std::vector<Dim>& shape, const std::string& op = "",
                   const std::string& attributes = "") {
  return proto::model(input("x", shape) + output("y", shape) + counting("w", {3, 3}) +
                      node("MatMul", {"x", "w"}, {op.empty() ? "y" : "h"}) +
                      (op.empty() ? "" : node(op, {"h"}, {"y"}, {.attributes = attributes})));
}

const Op& loss_op(const Model& model) {
  return model.graph[model.graph[model.graph.loss].producer];
}

TEST(OnnxLoss, CrossEntropyOverTheLastAxis) {
  for (const std::vector<Dim>& shape : {std::vector<Dim>{2, 3}, {2, 5, 3}}) {
    const Model model = import(scorer(shape));
    EXPECT_EQ(loss_op(model).kind, OpKind::CrossEntropy);
    EXPECT_EQ(std::get<CrossEntropyAttrs>(loss_op(model).attrs).axis,
              static_cast<int64_t>(shape.size()) - 1);
    EXPECT_TRUE(has_note(model, "cross-entropy loss attached to output"));
  }
}

TEST(OnnxLoss, CrossEntropyOverChannelsOfImages) {
  const Model model = import(scorer({2, 4, 5, 3}));
  EXPECT_EQ(std::get<CrossEntropyAttrs>(loss_op(model).attrs).axis, 1);
}

TEST(OnnxLoss, MeanSquaredErrorIfAskedForOrIfThereAreNoClasses) {
  EXPECT_EQ(loss_op(import(scorer({2, 3}), {.loss = LossKind::MeanSquaredError})).kind,
            OpKind::MeanSquaredError);
  EXPECT_EQ(loss_op(import(scorer({3}))).kind, OpKind::MeanSquaredError);
  EXPECT_THAT(import_error(scorer({3}), ErrorKind::Input, {.loss = LossKind::CrossEntropy}),
              HasSubstr("cannot attach a cross-entropy loss"));
}

TEST(OnnxLoss, GoesBeforeAFinalSoftmax) {
  const std::string file = scorer({2, 3}, "Softmax", attribute("axis", 1));
  const Model model = import(file);
  EXPECT_EQ(model.graph[model.graph[loss_op(model).inputs[0]].producer].kind, OpKind::Linear);
  EXPECT_TRUE(has_note(model, "before the final softmax"));
  // The softmax is still what the model puts out.
  EXPECT_EQ(model.graph[model.graph[model.graph.outputs[0]].producer].kind, OpKind::Softmax);
  const Model squared = import(file, {.loss = LossKind::MeanSquaredError});
  EXPECT_EQ(squared.graph[squared.graph[loss_op(squared).inputs[0]].producer].kind,
            OpKind::Softmax);
}

TEST(OnnxLoss, ASoftmaxOverSomethingElseThanTheClassesStays) {
  const std::string file = scorer({2, 5, 3}, "Softmax", attribute("axis", 2));
  const auto before_loss = [&](const ModelOptions& options) {
    const Model model = import(file, options);
    return model.graph[model.graph[loss_op(model).inputs[0]].producer].kind;
  };
  LossSpec classes(LossKind::CrossEntropy);
  for (const int64_t axis : {1, -2}) {
    classes.axis = axis;
    EXPECT_EQ(before_loss({.loss = classes}), OpKind::Softmax);
  }
  for (const int64_t axis : {2, -1}) {
    classes.axis = axis;
    EXPECT_EQ(before_loss({.loss = classes}), OpKind::Linear);
  }
}

TEST(OnnxLoss, AFinalSoftmaxSaysWhereTheClassesAre) {
  // Of images that have their channels last; of rows that have softmax over the batch it says
  // nothing.
  const Model model = import(scorer({2, 4, 5, 3}, "Softmax", attribute("axis", 3)));
  EXPECT_EQ(std::get<CrossEntropyAttrs>(loss_op(model).attrs).axis, 3);
  EXPECT_TRUE(has_note(model, "before the final softmax"));
  const Model rows = import(scorer({2, 3}, "Softmax", attribute("axis", 0)));
  EXPECT_EQ(std::get<CrossEntropyAttrs>(loss_op(rows).attrs).axis, 1);
  EXPECT_FALSE(has_note(rows, "before the final softmax"));
}

TEST(OnnxLoss, OutputsThatLookAlikeAreTrainedTogether) {
  const Model model =
      import(proto::model(input("x", {2, 3}) + output("y", {2, 3}) + output("aux", {2, 3}) +
                          output("h", {2, 5}) + counting("w", {3, 3}) + counting("v", {3, 3}) +
                          counting("u", {3, 5}) + node("MatMul", {"x", "w"}, {"y"}) +
                          node("MatMul", {"x", "v"}, {"aux"}) + node("MatMul", {"x", "u"}, {"h"})));
  EXPECT_EQ(count_ops(model.graph, OpKind::CrossEntropy), 2);
  EXPECT_EQ(loss_op(model).kind, OpKind::Binary);
  EXPECT_TRUE(has_note(model, "2 outputs of the same shape"));
}

// What is one tensor here was two outputs there, each with its term of the loss.
TEST(OnnxLoss, OutputsThatAreTheSameCountEach) {
  const Model model = import(proto::model(
      input("x", {2, 3}) + output("y", {2, 3}) + output("z", {2, 3}) + counting("w", {3, 3}) +
      node("MatMul", {"x", "w"}, {"y"}) + node("Identity", {"y"}, {"z"})));
  EXPECT_EQ(loss_op(model).kind, OpKind::Binary);
  EXPECT_TRUE(has_note(model, "2 outputs of the same shape"));
}

// An output that does not depend on anything is a term of the loss that is always the same.
TEST(OnnxLoss, OutputsThatAreKnownCount) {
  const Model model =
      import(proto::model(input("x", {2, 3}) + output("y", {2, 3}) + output("z", {2, 3}) +
                          counting("w", {3, 3}) + node("MatMul", {"x", "w"}, {"y"}) +
                          node("Shape", {"x"}, {"s"}) + node("ConstantOfShape", {"s"}, {"z"})));
  EXPECT_EQ(count_ops(model.graph, OpKind::CrossEntropy), 2);
  EXPECT_EQ(loss_op(model).kind, OpKind::Binary);
}

TEST(OnnxLoss, AModelMayBringItsOwn) {
  const std::string file = proto::model(
      input("x", {2, 3}) + input("t", {2}, kInt64) + output("loss", {}) + counting("w", {3, 3}) +
      node("MatMul", {"x", "w"}, {"y"}) + node("SoftmaxCrossEntropyLoss", {"y", "t"}, {"loss"}));
  const Model model = import(file);
  EXPECT_EQ(loss_op(model).kind, OpKind::CrossEntropy);
  EXPECT_EQ(model.graph.loss, model.graph.outputs[0]);
  EXPECT_FALSE(has_note(model, "attached"));
  EXPECT_TRUE(has_note(import(file, {.loss = LossKind::MeanSquaredError}), "--loss is not used"));
}

bool is_cross_entropy(const Model& model) { return loss_op(model).kind == OpKind::CrossEntropy; }

TEST(OnnxLoss, IsTheNumberThatCanBeTrained) {
  // An accuracy comes first, which no gradient passes.
  const std::string file = proto::model(
      input("x", {2, 3}) + input("t", {2}, kInt64) + counting("w", {3, 3}) + output("hits", {}) +
      output("loss", {}) + node("MatMul", {"x", "w"}, {"y"}) +
      node("SoftmaxCrossEntropyLoss", {"y", "t"}, {"loss"}) +
      node("ArgMax", {"y"}, {"best"},
           {.attributes = attribute("axis", 1) + attribute("keepdims", 0)}) +
      node("Equal", {"best", "t"}, {"same"}) +
      node("Cast", {"same"}, {"ones"}, {.attributes = attribute("to", 1)}) +
      node("ReduceMean", {"ones"}, {"hits"}, {.attributes = attribute("keepdims", 0)}));
  const Model model = import(file);
  EXPECT_TRUE(is_cross_entropy(model));
  EXPECT_FALSE(has_note(model, "not trained on"));
}

TEST(OnnxLoss, SecondNumbersAreNoted) {
  const std::string file = proto::model(
      input("x", {2, 3}) + input("t", {2}, kInt64) + counting("w", {3, 3}) + output("loss", {}) +
      output("size", {}) + node("MatMul", {"x", "w"}, {"y"}) +
      node("SoftmaxCrossEntropyLoss", {"y", "t"}, {"loss"}) +
      node("ReduceSumSquare", {"y"}, {"size"}, {.attributes = attribute("keepdims", 0)}));
  const Model model = import(file);
  EXPECT_TRUE(is_cross_entropy(model));
  EXPECT_TRUE(has_note(model, "\"size\" is a single number as well and not trained on"));
}

TEST(OnnxLoss, MayHaveAxesOfOneElement) {
  const auto file = [](int64_t samples) {
    return proto::model(
        input("x", {samples, 3}) + counting("w", {3, 3}) + output("loss", {1, 1}) +
        node("MatMul", {"x", "w"}, {"y"}) +
        node("ReduceSumSquare", {"y"}, {"loss"}, {.attributes = attribute("keepdims", 1)}));
  };
  const Model model = import(file(2));
  EXPECT_TRUE(has_note(model, "\"loss\" is one number for all samples"));
  EXPECT_TRUE(model.graph[model.graph.loss].type.shape.empty());
  // Of one sample it might as well be a prediction, and a loss that is asked for is attached.
  EXPECT_TRUE(has_note(import(file(1)), "loss attached"));
  EXPECT_TRUE(has_note(import(file(2), {.loss = LossKind::MeanSquaredError}), "loss attached"));
}

TEST(OnnxLoss, NeedsAComputedFloatOutput) {
  EXPECT_THAT(import_error(proto::model(input("x", {2, 3}) + output("x", {2, 3}))),
              HasSubstr("nothing to train"));
  EXPECT_THAT(import_error(
                  proto::model(input("x", {2, 3}) + output("y", {2, 1}, kInt64) +
                               node("ArgMax", {"x"}, {"y"}, {.attributes = attribute("axis", 1)}))),
              HasSubstr("nothing to train"));
}

TEST(OnnxLoss, ProbabilitiesOfClassesAreRefusedWithAWayOut) {
  const std::string file = proto::model(input("x", {2, 3}) + input("target", {2, 3}) +
                                        output("loss", std::vector<Dim>{}) + counting("w", {3, 3}) +
                                        node("MatMul", {"x", "w"}, {"h"}) +
                                        node("SoftmaxCrossEntropyLoss", {"h", "target"}, {"loss"}));
  EXPECT_THAT(import_error(file, ErrorKind::Input), HasSubstr("log_softmax(x, 1)"));
}

}  // namespace
}  // namespace windlass
