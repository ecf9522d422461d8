#include "windlass/model/onnx/onnx_import.h"

#include "windlass/model/onnx/import_testing.h"

namespace windlass {
namespace {

using namespace proto;
using testing::ElementsAre;
using testing::HasSubstr;

// x [2, 3] times `weights` in a row, each [3, 3].
std::string chain(const std::vector<std::string>& weights, const std::string& more = "") {
  std::string graph = input("x", {2, 3}) + output("y", {2, 3}) + more;
  for (size_t i = 0; i < weights.size(); ++i)
    graph += node("MatMul", {i == 0 ? "x" : "h" + std::to_string(i), weights[i]},
                  {i + 1 == weights.size() ? "y" : "h" + std::to_string(i + 1)});
  return graph;
}

TEST(OnnxImport, SharedWeightsCountOnce) {
  const Model model =
      import(proto::model(chain({"w", "w2", "w"}, counting("w", {3, 3}) + counting("w2", {3, 3}))));
  EXPECT_EQ(parameter_count(model.graph), 18);
  EXPECT_EQ(count_ops(model.graph, OpKind::Linear), 3);
  EXPECT_EQ(model.weights.size(), 2u);
}

// y = x where x > 0, else slope x: a graph whose gradient at 0 is the slope.
TEST(OnnxImport, ParametricReluChoosesTheSlopeAtZero) {
  const Graph graph =
      import(proto::model(input("x", {2, 3}) + output("y", {2, 3}) + counting("slope", {3}) +
                          node("PRelu", {"x", "slope"}, {"y"})))
          .graph;
  EXPECT_EQ(count_ops(graph, OpKind::Where), 1);
  EXPECT_EQ(count_ops(graph, OpKind::Unary), 0);
}

TEST(OnnxImport, GlobalMaxPoolingIsOneWindow) {
  const Graph graph =
      import(proto::model(input("x", {2, 3, 4, 5}) + output("y", {2, 3, 1, 1}) +
                          counting("w", {3, 1, 1}) + node("Mul", {"x", "w"}, {"a"}) +
                          node("GlobalMaxPool", {"a"}, {"y"})))
          .graph;
  ASSERT_EQ(count_ops(graph, OpKind::Pool), 1);
  EXPECT_EQ(count_ops(graph, OpKind::Reduce), 0);
}

// At a bound the gradient passes a weight that is clipped, so that one which begins there trains.
TEST(OnnxImport, WeightsAreClippedByChoosing) {
  const auto clipped = [](const std::string& name) {
    return import(proto::model(input("x", {2, 3}) + output("y", {2, 3}) + counting("w", {3}) +
                               initializer("low", {}, {0}) + initializer("high", {}, {1}) +
                               node("Clip", {name, "low", "high"}, {"c"}) +
                               node("Mul", {"x", "w"}, {"m"}) + node("Add", {"m", "c"}, {"y"})))
        .graph;
  };
  EXPECT_EQ(count_ops(clipped("w"), OpKind::Where), 2);
  EXPECT_EQ(count_ops(clipped("w"), OpKind::Unary), 0);
  EXPECT_EQ(count_ops(clipped("x"), OpKind::Where), 0);
}

TEST(OnnxImport, WeightsAreLocatedNotRead) {
  // 40 x 40 floats are cut out of the file, 3 stay; both are found again.
  const std::string file =
      proto::model(input("x", {2, 40}) + output("y", {2, 40}) + counting("w", {40, 40}) +
                   counting("b", {40}) + node("Gemm", {"x", "w", "b"}, {"y"}));
  const Model model = import(file);
  ASSERT_EQ(model.weights.size(), 2u);
  for (const auto& [id, location] : model.weights) {
    const int64_t count = element_count(model.graph[id].type.shape);
    EXPECT_EQ(location.bytes, 4 * count);
    ASSERT_EQ(static_cast<int64_t>(location.value.size()), 4 * count);
    float last = 0;
    std::memcpy(&last, location.value.data() + 4 * (count - 1), 4);
    EXPECT_EQ(last, static_cast<float>(count));
  }
}

TEST(OnnxImport, IdentityOfAWeightIsTheWeight) {
  const std::string aliases =
      counting("w", {3, 3}) + node("Identity", {"w"}, {"v"}) + node("Identity", {"v"}, {"u"});
  const Model model = import(proto::model(aliases + chain({"w", "u"})));
  EXPECT_THAT(weight_names(model.graph), ElementsAre("w"));
}

TEST(OnnxImport, IdentityOfAWeightByPyTorchIsAParameterThatWasEqual) {
  const std::string file =
      proto::model(counting("a.weight", {3, 3}) + node("Identity", {"a.weight"}, {"b.weight"}) +
                       chain({"a.weight", "b.weight"}),
                   {.producer = "pytorch"});
  const Model model = import(file);
  EXPECT_THAT(weight_names(model.graph), ElementsAre("a.weight", "b.weight"));
  EXPECT_EQ(model.weights.size(), 2u);
  EXPECT_THAT(weight_names(import(file, {.as_exported = true}).graph), ElementsAre("a.weight"));
}

// A dropout by nothing, which functions leave in exports for inference, does not make it one for
// training.
TEST(OnnxImport, DropoutByNothingIsNoSignOfTraining) {
  const auto weights = [](const std::string& ratio) {
    const std::string file = proto::model(
        input("x", {2, 3}) + output("y", {2, 3}) + counting("a.weight", {3, 3}) + ratio +
            node("Identity", {"a.weight"}, {"b.weight"}) +
            node("MatMul", {"x", "a.weight"}, {"z"}) + node("Dropout", {"z", "ratio"}, {"d"}) +
            node("MatMul", {"d", "b.weight"}, {"y"}),
        {.producer = "pytorch"});
    return weight_names(import(file).graph).size();
  };
  EXPECT_EQ(weights(proto::initializer("ratio", {}, {0.5F})), 1u);
  EXPECT_EQ(weights(proto::initializer("ratio", {}, {0.0F})), 2u);
}

// Exported for training, PyTorch stores once what is one parameter, not what is equal: here the
// transpose of a stored value was not folded.
TEST(OnnxImport, IdentityOfAWeightByPyTorchForTrainingIsATiedWeight) {
  const std::string file = proto::model(
      input("x", {2, 3}) + output("y", {2, 3}) + counting("a.weight", {3, 3}) +
          node("Identity", {"a.weight"}, {"b.weight"}) + node("MatMul", {"x", "a.weight"}, {"z"}) +
          node("Transpose", {"b.weight"}, {"t"}) + node("MatMul", {"z", "t"}, {"y"}),
      {.producer = "pytorch"});
  const Model model = import(file);
  EXPECT_THAT(weight_names(model.graph), ElementsAre("a.weight"));
  EXPECT_TRUE(has_note(model, "tied"));
}

TEST(OnnxImport, IdentityChainsOfActivationsVanish) {
  const Model model =
      import(proto::model(input("x", {2, 3}) + output("y", {2, 3}) + counting("w", {3, 3}) +
                          node("Identity", {"x"}, {"a"}) + node("Identity", {"a"}, {"b"}) +
                          node("MatMul", {"b", "w"}, {"c"}) + node("Identity", {"c"}, {"y"})));
  ASSERT_EQ(model.graph.ops.size(), 2u);  // with the loss
  EXPECT_EQ(model.graph.ops[0].inputs[0], model.graph.inputs[0]);
}

// A roll by nothing is exported as all of a tensor joined with nothing of it.
TEST(OnnxImport, EmptyPartsOfAJoinVanish) {
  const auto one_number = [](const std::string& name, int64_t value) {
    return constant(name, int_tensor("", {1}, {value}));
  };
  const Model model =
      import(proto::model(input("x", {2, 3}) + output("y", {2, 3}) + counting("w", {3, 3}) +
                          one_number("zero", 0) + one_number("one", 1) + one_number("three", 3) +
                          node("Slice", {"x", "zero", "three", "one"}, {"a"}) +
                          node("Slice", {"x", "three", "three", "one"}, {"b"}) +
                          node("Concat", {"a", "b"}, {"c"}, {.attributes = attribute("axis", 1)}) +
                          node("MatMul", {"c", "w"}, {"y"})));
  EXPECT_EQ(count_ops(model.graph, OpKind::Concat), 0);
  EXPECT_EQ(count_ops(model.graph, OpKind::Slice), 0);
}

TEST(OnnxImport, InitializersListedAsInputs) {
  const Model model = import(proto::model(chain({"w"}, counting("w", {3, 3}) + input("w", {3, 3})),
                                          {.opset = 9, .ir_version = 3}));
  EXPECT_EQ(model.graph.inputs.size(), 1u);
  EXPECT_EQ(parameter_count(model.graph), 9);
}

TEST(OnnxImport, NamedNumbersOfPyTorchAreParameters) {
  const std::string graph = input("x", {2, 3}) + output("y", {2, 3}) + counting("w", {3, 3}) +
                            initializer("gain", {}, {0.5}) + initializer("onnx::Add_7", {}, {2}) +
                            node("MatMul", {"x", "w"}, {"a"}) + node("Mul", {"a", "gain"}, {"b"}) +
                            node("Add", {"b", "onnx::Add_7"}, {"y"});
  const Model model = import(proto::model(graph, {.producer = "pytorch"}));
  EXPECT_THAT(weight_names(model.graph), ElementsAre("gain", "w"));
  // What has no name may be a parameter that the exporter has computed with: a note says so.
  EXPECT_THAT(model.notes, Contains(HasSubstr("onnx::Add_7 (a number without a name)")));
  EXPECT_THAT(
      weight_names(
          import(proto::model(graph, {.producer = "pytorch"}), {.train = {"onnx::Add_7"}}).graph),
      ElementsAre("gain", "onnx::Add_7", "w"));
  EXPECT_THAT(weight_names(import(proto::model(graph)).graph), ElementsAre("w"));
  // Newer exporters name constants too.
  const Model newer = import(proto::model(graph, {.ir_version = 10, .producer = "pytorch"}));
  EXPECT_THAT(weight_names(newer.graph), ElementsAre("w"));
}

TEST(OnnxImport, TheMaskOfADropoutIsNotComputed) {
  const auto file = [](const std::string& last) {
    return proto::model(input("x", {2, 3}) + output("y", {2, 3}) + counting("w", {3, 3}) +
                        constant("ratio", tensor("", {}, {0.1f})) +
                        constant("training", tensor_head("", {}, kBool) + bytes(9, "\1")) +
                        node("MatMul", {"x", "w"}, {"a"}) +
                        node("Dropout", {"a", "ratio", "training"}, {"b", "mask"}) + last);
  };
  const Model model = import(file(node("Relu", {"b"}, {"y"})));
  EXPECT_EQ(count_ops(model.graph, OpKind::Dropout), 1);
  EXPECT_TRUE(model.graph.constants.empty());
  EXPECT_THAT(import_error(file(node("Where", {"mask", "a", "b"}, {"y"})), ErrorKind::Unsupported),
              HasSubstr("(Where): reads the mask of a dropout"));
}

// --- functions

// scale(x) = LeakyRelu(x) with the slope `slope`; twice(x) = scale(scale(x)) with slope 0.25.
std::vector<FunctionSpec> nested_functions() {
  return {
      {.name = "scale",
       .inputs = {"a"},
       .outputs = {"b"},
       .attributes = {"slope"},
       .nodes = {node_content("LeakyRelu", {"a"}, {"b"},
                              {.attributes = attribute_reference("alpha", "slope")})}},
      {.name = "twice",
       .inputs = {"a", "w"},
       .outputs = {"b"},
       .attributes = {},
       .nodes = {node_content("MatMul", {"a", "w"}, {"m"}),
                 node_content("scale", {"m"}, {"h"},
                              {.attributes = float_attribute("slope", 0.25), .domain = "local"}),
                 node_content("scale", {"h"}, {"b"}, {.domain = "local"})}}};
}

TEST(OnnxImport, FunctionsNestAndPassAttributes) {
  const std::string file =
      proto::model(input("x", {2, 3}) + output("y", {2, 3}) + counting("weight", {3, 3}) +
                       node("twice", {"x", "weight"}, {"b"}, {.name = "first", .domain = "local"}) +
                       node("twice", {"b", "weight"}, {"y"}, {.name = "second", .domain = "local"}),
                   {.opset = 15, .functions = nested_functions()});
  const Model model = import(file);
  EXPECT_EQ(parameter_count(model.graph), 9);
  EXPECT_EQ(count_ops(model.graph, OpKind::Linear), 2);
  std::vector<double> slopes;
  for (const Op& op : model.graph.ops)
    if (op.kind == OpKind::Unary) slopes.push_back(std::get<UnaryAttrs>(op.attrs).alpha);
  // The attribute that the call leaves out has the operator's default.
  EXPECT_THAT(slopes, ElementsAre(0.25, 0.01, 0.25, 0.01));
  EXPECT_EQ(model.graph.ops[0].name, "first/-> m");
}

TEST(OnnxImport, FunctionsThatCallThemselvesAreRefused) {
  const FunctionSpec loop{.name = "loop",
                          .inputs = {"a"},
                          .outputs = {"b"},
                          .attributes = {},
                          .nodes = {node_content("loop", {"a"}, {"b"}, {.domain = "local"})}};
  const std::string file = proto::model(
      chain({"w"}, counting("w", {3, 3})) + node("loop", {"y"}, {"z"}, {.domain = "local"}),
      {.opset = 15, .functions = {loop}});
  EXPECT_THAT(import_error(file), HasSubstr("deep"));
}

// --- branches

std::string branch(const std::string& op) {
  return node(op, {"x"}, {"chosen"}) + output("chosen", {2, 3});
}

std::string with_branch(bool condition) {
  const std::string flag = tensor_head("", {}, kBool) + bytes(9, std::string(1, condition ? 1 : 0));
  return proto::model(input("x", {2, 3}) + output("y", {2, 3}) + counting("w", {3, 3}) +
                      constant("flag", flag) +
                      node("If", {"flag"}, {"a"},
                           {.attributes = graph_attribute("then_branch", branch("Relu")) +
                                          graph_attribute("else_branch", branch("Tanh"))}) +
                      node("MatMul", {"a", "w"}, {"y"}));
}

TEST(OnnxImport, BranchWithKnownConditionIsTaken) {
  for (const bool condition : {true, false}) {
    const Model model = import(with_branch(condition));
    ASSERT_EQ(count_ops(model.graph, OpKind::Unary), 1);
    EXPECT_EQ(std::get<UnaryAttrs>(model.graph.ops[0].attrs).fn,
              condition ? UnaryFn::Relu : UnaryFn::Tanh);
  }
}

// PyTorch declares what follows a squeeze of an axis of unknown size as if it had been squeezed.
TEST(OnnxImport, SizesOfTheOtherBranchDoNotCount) {
  const std::string flag = tensor_head("", {}, kBool) + bytes(9, std::string(1, 0));
  const std::string declared = bytes(13, proto::value_info("a", {6}, proto::kFloat));
  const Model model =
      import(proto::model(input("x", {2, 3}) + output("y", {6}) + counting("w", {3}) +
                          constant("flag", flag) + declared +
                          node("If", {"flag"}, {"a"},
                               {.attributes = graph_attribute("then_branch", branch("Relu")) +
                                              graph_attribute("else_branch", branch("Tanh"))}) +
                          node("Mul", {"a", "w"}, {"y"})));
  EXPECT_EQ(model.graph.type_of(model.graph.outputs[0]).shape, (Shape{2, 3}));
  EXPECT_TRUE(has_note(model, "declared sizes"));
}

// --- versions

TEST(OnnxImport, NewerOpsetsAreImportedUnchecked) {
  const std::string graph = input("x", {2, 3}) + output("y", {2, 3}) + counting("w", {3}) +
                            node("RMSNormalization", {"x", "w"}, {"y"});
  const Model model = import(proto::model(graph, {.opset = 23, .ir_version = 11}));
  EXPECT_EQ(count_ops(model.graph, OpKind::RmsNorm), 1);
  EXPECT_TRUE(has_note(model, "checker was skipped"));
  EXPECT_FALSE(has_note(import(proto::model(chain({"w"}, counting("w", {3, 3})))), "skipped"));
}

TEST(OnnxImport, OpsetsOutOfRangeAreRefused) {
  for (const int64_t opset : {24, 1000}) {
    const std::string file =
        proto::model(chain({"w"}, counting("w", {3, 3})), {.opset = opset, .ir_version = 12});
    EXPECT_THAT(import_error(file, ErrorKind::Unsupported),
                HasSubstr("opset " + std::to_string(opset) + " is not supported"));
  }
}

TEST(OnnxImport, UnsupportedOperatorsAreListedAtOnce) {
  const std::string file = proto::model(
      chain({"w"}, counting("w", {3, 3})) + node("Unique", {"y"}, {"v1"}, {.name = "best"}) +
          node("Unique", {"v1"}, {"v2"}, {.name = "better"}) +
          node("Turn", {"y"}, {"t"}, {.name = "crank", .domain = "com.acme"}),
      {.domains = {"com.acme"}});
  const std::string message = import_error(file, ErrorKind::Unsupported);
  EXPECT_THAT(message, HasSubstr("m.onnx: 2 operators are not supported"));
  EXPECT_THAT(message, HasSubstr("Unique x2 (\"best\", \"better\"): export it decomposed"));
  EXPECT_THAT(message, HasSubstr("com.acme.Turn x1 (\"crank\")"));
}

TEST(OnnxImport, NodesThatCannotBeImportedAreListedAtOnce) {
  const std::string file = proto::model(
      input("x", {2, 3}) + input("n", {1}, kInt64) + output("y", {2, 3}) + counting("w", {3, 3}) +
      node("MatMul", {"x", "w"}, {"a"}) + node("Reshape", {"a", "n"}, {"b"}, {.name = "first"}) +
      node("Relu", {"b"}, {"c"}, {.name = "after"}) +
      node("Expand", {"a", "n"}, {"y"}, {.name = "second"}));
  const std::string message = import_error(file, ErrorKind::Unsupported);
  EXPECT_THAT(message, HasSubstr("2 nodes cannot be imported"));
  EXPECT_THAT(message, HasSubstr("node \"first\" (Reshape): the target shape depends on the data"));
  EXPECT_THAT(message, HasSubstr("node \"second\" (Expand)"));
  EXPECT_EQ(message.find("after"), std::string::npos);
}

// --- fusion

// (x - mean) / sqrt(mean((x - mean)^2) + 1e-5) * g + b
std::string decomposed_layer_norm() {
  const NodeOptions last{.attributes = ints_attribute("axes", {-1})};
  return proto::model(
      input("x", {2, 3}) + output("y", {2, 3}) + counting("g", {3}) + counting("b", {3}) +
      constant("two", tensor("", {}, {2})) + constant("epsilon", tensor("", {}, {1e-5f})) +
      node("ReduceMean", {"x"}, {"mean"}, last) + node("Sub", {"x", "mean"}, {"centered"}) +
      node("Pow", {"centered", "two"}, {"squared"}) +
      node("ReduceMean", {"squared"}, {"var"}, last) + node("Add", {"var", "epsilon"}, {"sum"}) +
      node("Sqrt", {"sum"}, {"deviation"}) + node("Div", {"centered", "deviation"}, {"norm"}) +
      node("Mul", {"norm", "g"}, {"scaled"}) + node("Add", {"scaled", "b"}, {"y"}));
}

TEST(OnnxImport, FusionCanBeSwitchedOff) {
  const Model fused = import(decomposed_layer_norm());
  EXPECT_EQ(count_ops(fused.graph, OpKind::LayerNorm), 1);
  EXPECT_EQ(fused.graph.ops.size(), 2u);
  EXPECT_TRUE(has_note(fused, "1 layer norm"));
  const Model plain = import(decomposed_layer_norm(), {.fuse = false});
  EXPECT_EQ(count_ops(plain.graph, OpKind::LayerNorm), 0);
  EXPECT_EQ(count_ops(plain.graph, OpKind::Reduce), 2);
}

// --- damaged files

TEST(OnnxImport, ContradictionsNameTheNode) {
  EXPECT_THAT(import_error(proto::model(chain({"w"}, counting("w", {4, 3})))),
              HasSubstr("node \"-> y\" (MatMul)"));
  EXPECT_THAT(import_error(proto::model(input("x", {2, 3}) + output("y", {2, 4}) +
                                        counting("w", {3, 3}) + node("MatMul", {"x", "w"}, {"y"}))),
              HasSubstr("declared as fp32[2, 4], its operands make it fp32[2, 3]"));
  EXPECT_THAT(import_error(proto::model(chain({"w"}, initializer("w", {3, 3}, {1, 2})))),
              HasSubstr("tensor \"w\": 8 bytes of data, fp32[3, 3] needs 36"));
}

TEST(OnnxImport, StraightThroughEstimatorsAreNoted) {
  // y = a + (b - a), as a + (b - a).detach() is exported.
  const auto file = [](const std::vector<std::string>& difference,
                       const std::vector<std::string>& sum) {
    return proto::model(input("x", {2, 3}) + output("y", {2, 3}) + counting("w", {3, 3}) +
                        node("MatMul", {"x", "w"}, {"a"}) + node("Tanh", {"a"}, {"b"}) +
                        node("Sub", difference, {"d"}) + node("Add", sum, {"y"}));
  };
  const std::string note = "\"-> y\" is a + (b - a) with \"-> a\" as a";
  EXPECT_TRUE(has_note(import(file({"b", "a"}, {"a", "d"})), note));
  EXPECT_TRUE(has_note(import(file({"b", "a"}, {"d", "a"})), note));
  EXPECT_FALSE(has_note(import(file({"a", "b"}, {"a", "d"})), "straight-through"));
  EXPECT_FALSE(has_note(import(file({"b", "a"}, {"b", "d"})), "straight-through"));
}

TEST(OnnxImport, CyclesAreReported) {
  const std::string file =
      proto::model(input("x", {2, 3}) + output("y", {2, 3}) + counting("w", {3, 3}) +
                       node("Add", {"x", "b"}, {"a"}) + node("MatMul", {"a", "w"}, {"b"}) +
                       node("Relu", {"b"}, {"y"}),
                   {.opset = 23, .ir_version = 11});  // which ONNX's checker does not see
  EXPECT_THAT(import_error(file), HasSubstr("cyclic or out of order"));
}

TEST(OnnxImport, CutShortAnywhereIsAnInputError) {
  const std::string file = decomposed_layer_norm();
  for (size_t size = 0; size < file.size(); size += 7) {
    const std::string message = import_error(file.substr(0, size));
    EXPECT_THAT(message, testing::StartsWith("m.onnx: ")) << size;
  }
}

}  // namespace
}  // namespace windlass
