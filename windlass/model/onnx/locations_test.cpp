// Where the values of imported weights and buffers lie: every one has a place, and what is read
// there is what the file says.

#include <filesystem>
#include <fstream>
#include <set>

#include "windlass/model/onnx/import_testing.h"
#include "windlass/model/weights.h"

namespace windlass {
namespace {

using namespace proto;

std::vector<float> floats_of(const Model& model, TensorId id) {
  std::vector<float> values(static_cast<size_t>(element_count(model.graph[id].type.shape)));
  read_weight(model.weights.at(id), DType::F32, std::as_writable_bytes(std::span(values)));
  return values;
}

// The weights and buffers of the graph, all of which have a location of the right size.
std::vector<TensorId> located(const Model& model) {
  std::vector<TensorId> ids;
  for (size_t t = 0; t < model.graph.tensors.size(); ++t) {
    const Tensor& tensor = model.graph.tensors[t];
    if (tensor.role != TensorRole::Weight && tensor.role != TensorRole::Buffer) continue;
    const auto found = model.weights.find(TensorId(t));
    EXPECT_NE(found, model.weights.end()) << tensor.name;
    if (found == model.weights.end()) continue;
    EXPECT_EQ(stored_elements(found->second), element_count(tensor.type.shape)) << tensor.name;
    ids.emplace_back(t);
  }
  return ids;
}

// y = If(flag, x v, x v) with a `v` of its own in each branch, from `first` upwards.
std::string choice(const std::string& in, const std::string& out, float first) {
  const std::vector<float> values = {first, first + 1, first + 2, first + 3};
  const auto branch = [&](const std::string& result) {
    return initializer("v", {2, 2}, values) + node("MatMul", {in, "v"}, {result}) +
           output(result, {3, 2});
  };
  return node("If", {"flag"}, {out},
              {.attributes = graph_attribute("then_branch", branch(out + "_a")) +
                             graph_attribute("else_branch", branch(out + "_b"))});
}

TEST(Locations, WeightsOfBranchesHaveThem) {
  const std::string flag = tensor_head("", {}, kBool) + bytes(9, std::string(1, '\1'));
  const Model model =
      import(proto::model(input("x", {3, 2}) + output("z", {3, 2}) + constant("flag", flag) +
                          choice("x", "y", 1) + choice("y", "z", 10)));
  const std::vector<TensorId> ids = located(model);
  ASSERT_EQ(ids.size(), 2u);
  std::set<std::string> names;
  std::set<float> firsts;
  for (TensorId id : ids) {
    names.insert(model.graph[id].name);
    firsts.insert(floats_of(model, id)[0]);
  }
  EXPECT_EQ(names.size(), 2u);
  EXPECT_EQ(firsts, (std::set<float>{1, 10}));
}

TEST(Locations, UnsignedIntegersAreWidened) {
  // Too many values to be looked at, so they stay a buffer.
  constexpr int64_t kCount = (int64_t{1} << 22) + 1;
  constexpr auto kUnsigned16 = static_cast<ElementType>(4);
  std::vector<uint16_t> stored(static_cast<size_t>(kCount), 0xfffe);
  const std::string values(reinterpret_cast<const char*>(stored.data()), 2 * stored.size());
  const Model model = import(proto::model(
      input("x", {kCount}) + output("y", {kCount}) +
      initializer(tensor_head("steps", {kCount}, kUnsigned16) + bytes(9, values)) +
      counting("w", {1}) + node("Cast", {"steps"}, {"f"}, {.attributes = attribute("to", 1)}) +
      node("Mul", {"x", "f"}, {"g"}) + node("Add", {"g", "w"}, {"y"})));
  bool found = false;
  for (TensorId id : located(model)) {
    const Tensor& tensor = model.graph[id];
    if (tensor.name != "steps") continue;
    found = true;
    ASSERT_EQ(tensor.type.dtype, DType::I32);
    std::vector<int32_t> read(static_cast<size_t>(kCount));
    read_weight(model.weights.at(id), DType::I32, std::as_writable_bytes(std::span(read)));
    EXPECT_EQ(read.front(), 0xfffe);
    EXPECT_EQ(read.back(), 0xfffe);
  }
  EXPECT_TRUE(found);
}

TEST(Locations, StayWithAnotherElementType) {
  namespace fs = std::filesystem;
  const fs::path path = fs::path(testing::TempDir()) / "windlass_locations.onnx";
  std::vector<float> large(64 * 64);
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<float>(i);
  std::ofstream(path, std::ios::binary) << proto::model(
      input("x", {3, 64}) + output("y", {3, 64}) + initializer("w", {64, 64}, large) +
      counting("b", {64}) + node("MatMul", {"x", "w"}, {"h"}) + node("Add", {"h", "b"}, {"y"}));
  ModelOptions options;
  options.dtype = DType::BF16;
  const Model model = load_model(path.string(), options);
  const std::vector<TensorId> ids = located(model);
  EXPECT_EQ(ids.size(), 2u);
  for (TensorId id : ids) {
    EXPECT_EQ(model.graph[id].type.dtype, DType::BF16);
    EXPECT_EQ(model.weights.at(id).dtype, DType::F32);
    EXPECT_EQ(floats_of(model, id)[5], model.graph[id].name == "w" ? 5 : 6);
  }
  fs::remove(path);
}

}  // namespace
}  // namespace windlass
