// Files that are damaged, wrong or made to do harm: each gets exit code 1 and one message that
// begins with its name, at once and in little memory.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "tests/run_program.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/base/test_effort.h"
#include "windlass/base/test_places.h"
#include "windlass/graph/differentiate.h"
#include "windlass/model/huggingface/huggingface.h"
#include "windlass/model/onnx/onnx_import.h"
#include "windlass/model/onnx/proto_writer.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using namespace proto;

constexpr int64_t kUnchecked = 99;  // an IR version that no ONNX library knows: no checker
constexpr int64_t kHuge = int64_t{1} << 40;

class HostileSlow : public testing::Test {
 protected:
  HostileSlow() {
    std::string pattern = (fs::temp_directory_path() / "windlass-hostile-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~HostileSlow() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return (folder_ / name).string();
  }

  // Exit code 1, nothing on stdout, and one message that begins with the path and says `hint`.
  // Returns the seconds of CPU time it took.
  static double expect_refusal(const std::string& path, const std::string& hint,
                               const std::vector<std::string>& flags = {}) {
    SCOPED_TRACE(path + ": " + hint);
    std::vector<std::string> arguments = {"inspect", path};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const ProgramResult result = run_windlass(arguments);
    EXPECT_EQ(result.exit_code, 1) << result.err.substr(0, 1000);
    EXPECT_EQ(result.out, "");
    const std::string beginning = "windlass: " + path;
    EXPECT_EQ(result.err.substr(0, beginning.size()), beginning);
    EXPECT_EQ(result.err.find("\nwindlass: "), std::string::npos) << "two messages";
    EXPECT_TRUE(result.err.ends_with("\n"));
    EXPECT_LT(result.err.size(), 30'000U);
    EXPECT_NE(result.err.find(hint), std::string::npos) << result.err.substr(0, 1000);
    EXPECT_LT(result.cpu_seconds, 20);
    if (!kSanitized) {
      EXPECT_LT(result.peak_bytes, 500'000'000);
    }
    return result.cpu_seconds;
  }

  void expect_refused_model(const std::string& name, const std::string& bytes,
                            const std::string& hint) const {
    expect_refusal(write(name + ".onnx", bytes), hint);
  }

  fs::path folder_;
};

// y = x w, with x [2, 4] and w [4, 3].
std::string dense(const std::string& weight = counting("w", {4, 3})) {
  return node("MatMul", {"x", "w"}, {"y"}) + weight + input("x", {2, 4}) + output("y", {2, 3});
}

// The model without ONNX's checker, which would refuse some of these before windlass sees them.
std::string unchecked(const std::string& graph, int64_t opset = 17) {
  return model(graph, {.opset = opset, .ir_version = kUnchecked});
}

// `nodes` that compute with the constant "known" beside a dense layer.
std::string beside_dense(const std::string& nodes) { return unchecked(nodes + dense()); }

std::string read_corpus(const std::string& name) {
  std::ifstream stream(fs::path(source_folder()) / "fuzz/corpus" / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// --- ONNX through the program

TEST_F(HostileSlow, DamagedFiles) {
  const std::string whole = model(dense());
  expect_refused_model("empty", "", "empty");
  expect_refused_model("text", "This is not a model.\n", "byte 0");
  expect_refused_model("half", whole.substr(0, whole.size() / 2), "cut short");
  expect_refused_model("zeros", std::string(1000, '\0'), "invalid tag");
  expect_refused_model("ones", std::string(1000, '\xff'), "byte 0");
  expect_refused_model("no_graph", number(1, 8) + opset_import(8, "", 13), "no graph");
  expect_refused_model("no_opset", number(1, 8) + bytes(7, dense()), "no opset");
  std::string nested = "x";
  for (int i = 0; i < 200; ++i) nested = bytes(1, bytes(5, bytes(6, nested)));
  expect_refused_model("nested", number(1, 8) + bytes(7, nested), "nested more than 64 deep");
}

TEST_F(HostileSlow, GraphsThatContradictThemselves) {
  const std::string ends = input("x", {2, 4}) + output("y", {2, 4});
  expect_refused_model(
      "cycle", unchecked(node("Add", {"x", "b"}, {"a"}) + node("Relu", {"a"}, {"b"}) + ends),
      "cyclic or out of order");
  expect_refused_model("order",
                       unchecked(node("Relu", {"a"}, {"y"}) + node("Relu", {"x"}, {"a"}) + ends),
                       "cyclic or out of order");
  expect_refused_model("twice",
                       unchecked(node("Relu", {"x"}, {"y"}) + node("Tanh", {"x"}, {"y"}) + ends),
                       "defined twice");
  expect_refused_model("two_weights", unchecked(dense() + counting("w", {4, 3})), "defined twice");
  expect_refused_model("no_output", unchecked(node("Relu", {"x"}, {"a"}) + ends), "\"y\"");
  expect_refused_model("nothing", unchecked(""), "nothing to train");
  expect_refused_model("inner", model(dense(counting("w", {5, 3}))), "inner dimensions");
  expect_refused_model("declared",
                       model(node("MatMul", {"x", "w"}, {"y"}) + counting("w", {4, 3}) +
                             input("x", {2, 4}) + output("y", {2, 7})),
                       "is declared as fp32[2, 7]");
  expect_refused_model("few_inputs", unchecked(node("MatMul", {"x"}, {"y"}) + ends), "missing");
  expect_refused_model("opset", model(dense(), {.opset = 0}), "domain_version of 0");
}

TEST_F(HostileSlow, SizesThatAreNotPlausible) {
  const auto relu = [](const std::vector<Dim>& dims) {
    return unchecked(node("Relu", {"x"}, {"y"}) + input("x", dims) + bytes(12, bytes(1, "y")));
  };
  expect_refused_model("overflow", relu({kHuge, kHuge}), "overflows");
  expect_refused_model("empty_overflow", relu({0, kHuge, kHuge}), "overflows");
  expect_refused_model("largest", relu({std::numeric_limits<int64_t>::max()}), "overflows");
  expect_refused_model("rank", relu(std::vector<Dim>(100'000, 1)), "100000 dimensions");
  const std::string negative =
      bytes(1, "x") + bytes(2, bytes(1, number(1, kFloat) + bytes(2, bytes(1, number(1, -5)))));
  expect_refused_model(
      "negative",
      unchecked(node("Relu", {"x"}, {"y"}) + bytes(11, negative) + bytes(12, bytes(1, "y"))),
      "negative dimension: -5");
  const auto weight = [](const std::string& content) {
    return unchecked(dense(initializer(content)));
  };
  expect_refused_model("weight_negative", weight(tensor_head("w", {4, -3})), "negative dimension");
  expect_refused_model("weight_overflow", weight(tensor_head("w", {kHuge, kHuge})), "overflows");
  expect_refused_model("weight_without_data", weight(tensor_head("w", {1'000'000, 1000})),
                       "0 bytes of data");
  expect_refused_model("weight_short", weight(tensor("w", {4, 3}, {1, 2, 3})), "12 bytes of data");
  expect_refused_model("weight_long", weight(tensor("w", {1, 1}, {1, 2, 3})), "12 bytes of data");
  expect_refused_model("weight_type",
                       weight(number(1, 4) + number(1, 3) + number(2, 77) + bytes(8, "w")),
                       "ONNX type 77");
  expect_refused_model("weight_of_integers",
                       weight(int_tensor("w", {4, 3}, std::vector<int64_t>(12, 1))),
                       "floating-point");
}

TEST_F(HostileSlow, ExternalData) {
  write("short.bin", std::string(47, '\0'));
  fs::create_directory(folder_ / "folder");
  const auto refuse = [&](const std::string& name, const std::string& hint,
                          const std::vector<std::pair<std::string, std::string>>& entries) {
    expect_refused_model(name, model(dense(initializer(external_tensor("w", {4, 3}, entries)))),
                         hint);
  };
  refuse("missing", "cannot be read", {{"location", "no_such_file.bin"}});
  refuse("above", "outside", {{"location", "../../etc/passwd"}});
  refuse("roundabout", "outside", {{"location", "folder/../../x.bin"}});
  refuse("absolute", "outside", {{"location", "/etc/passwd"}});
  refuse("folder", "cannot be read", {{"location", "folder"}});
  refuse("nameless", "names no file", {});
  refuse("short", "has 47 bytes", {{"location", "short.bin"}});
  refuse("length", "40 bytes", {{"location", "short.bin"}, {"length", "40"}});
  refuse("offset", "overflows", {{"location", "short.bin"}, {"offset", "9223372036854775807"}});
  refuse("negative", "expected a number", {{"location", "short.bin"}, {"offset", "-8"}});
  refuse("words", "expected a number", {{"location", "short.bin"}, {"offset", "eight"}});
  refuse("reserved", "reserved", {{"windlass_payload", "0"}});
}

TEST_F(HostileSlow, Functions) {
  const std::string ends = input("x", {2, 4}) + output("y", {2, 4});
  const auto call = [](const std::string& name, const std::string& in, const std::string& out) {
    return node_content(name, {in}, {out}, {.domain = "local"});
  };
  ModelSpec spec{.ir_version = kUnchecked,
                 .functions = {{"F", {"a"}, {"b"}, {}, {call("F", "a", "b")}}}};
  expect_refused_model("recursion", model(bytes(1, call("F", "x", "y")) + ends, spec),
                       "nested more than 32 deep");
  // Ten calls of ten calls of ... : 10^12 nodes.
  spec.functions = {{"F0", {"a"}, {"b"}, {}, {node_content("Relu", {"a"}, {"b"})}}};
  for (int level = 1; level <= 12; ++level) {
    FunctionSpec function{fmt::format("F{}", level), {"v0"}, {"v10"}, {}, {}};
    for (int i = 0; i < 10; ++i)
      function.nodes.push_back(
          call(fmt::format("F{}", level - 1), fmt::format("v{}", i), fmt::format("v{}", i + 1)));
    spec.functions.push_back(function);
  }
  expect_refused_model("bomb", model(bytes(1, call("F12", "x", "y")) + ends, spec), "unfold");
}

// These are valid, and are read without evaluating what would take too long.
TEST_F(HostileSlow, WorkThatIsLeftUndone) {
  const auto expect_done = [&](const std::string& name, const std::string& bytes) {
    SCOPED_TRACE(name);
    const ProgramResult result = run_windlass({"inspect", write(name + ".onnx", bytes)});
    EXPECT_EQ(result.exit_code, 0) << result.err.substr(0, 1000);
    EXPECT_LT(result.cpu_seconds, 100);
    if (!kSanitized) {
      EXPECT_LT(result.peak_bytes, 500'000'000);
    }
  };
  const std::string side = constant("side", int_tensor("", {1}, {int64_t{1} << 22}));
  // Sums over the same four million elements, again and again.
  std::string nodes = side + node("ConstantOfShape", {"side"}, {"ones"});
  for (int i = 0; i < 2000; ++i) nodes += node("ReduceSum", {"ones"}, {fmt::format("sum{}", i)});
  expect_done("sums", beside_dense(nodes));
  // Each doubles the one before.
  nodes = side + node("ConstantOfShape", {"side"}, {"d0"});
  for (int i = 0; i < 20; ++i)
    nodes += node("Concat", {fmt::format("d{}", i), fmt::format("d{}", i)},
                  {fmt::format("d{}", i + 1)}, {.attributes = attribute("axis", 0)});
  expect_done("doubling", beside_dense(nodes));
  // A long chain of equal ops, and one of ops that merge.
  for (const char* op : {"Tanh", "Identity", "Neg"}) {
    nodes = node("Relu", {"y"}, {"c0"});
    for (int i = 0; i < 20'000; ++i)
      nodes += node(op, {fmt::format("c{}", i)}, {fmt::format("c{}", i + 1)});
    const std::string end = bytes(12, bytes(1, "c20000"));
    expect_done(fmt::format("chain_{}", op), unchecked(dense() + nodes + end));
  }
}

// Constants that take far more room than the file, each refused before it is made; and sizes that
// overflow where nobody reads the result.
TEST_F(HostileSlow, ConstantsThatExplode) {
  const auto refuse = [&](const std::string& name, const std::string& nodes,
                          const std::string& hint) {
    const double seconds = expect_refusal(write(name + ".onnx", beside_dense(nodes)), hint);
    EXPECT_LT(seconds, kSanitized ? 20 : 2) << name;
  };
  const auto number = [](const std::string& name, int64_t value) {
    return constant(name, int_tensor("", {}, {value}));
  };
  const std::string side = constant("side", int_tensor("", {1}, {int64_t{1} << 24}));
  const auto many = [](const std::string& op, const std::vector<std::string>& inputs) {
    std::string nodes;
    for (int i = 0; i < 2000; ++i) nodes += node(op, inputs, {fmt::format("known{}", i)});
    return nodes;
  };
  refuse("constants", side + many("ConstantOfShape", {"side"}), "too many known values");
  refuse("ranges",
         number("from", 0) + number("to", int64_t{1} << 24) + number("step", 1) +
             many("Range", {"from", "to", "step"}),
         "too many known values");
  const std::string square = constant("sides", int_tensor("", {2}, {2048, 2048})) +
                             node("ConstantOfShape", {"sides"}, {"square"});
  refuse("identities", square + many("EyeLike", {"square"}), "too many known values");
  refuse("triangles", square + many("Trilu", {"square"}), "too many known values");
  refuse("places", square + many("NonZero", {"square"}), "computes too much");
  refuse("scattered",
         square + constant("place", int_tensor("", {1, 2}, {0, 0})) +
             constant("one", int_tensor("", {1}, {1})) +
             node("ConstantOfShape", {"one"}, {"update"}) +
             many("ScatterND", {"square", "place", "update"}),
         "too many known values");

  // Padding by its own size on both sides: three times as large each time.
  std::string nodes = node("Relu", {"x"}, {"p0"});
  for (int i = 0; i < 80; ++i) {
    const std::string k = std::to_string(i);
    nodes +=
        node("Shape", {"p" + k}, {"s" + k}) +
        node("Concat", {"s" + k, "s" + k}, {"pads" + k}, {.attributes = attribute("axis", 0)}) +
        node("Pad", {"p" + k, "pads" + k}, {"p" + std::to_string(i + 1)});
  }
  refuse("padding", nodes, "overflows");
  for (int64_t width : {int64_t{1} << 31, kHuge, int64_t{1} << 58, int64_t{1} << 62}) {
    const std::string pads = constant("pads", int_tensor("", {4}, {width, width, width, width}));
    refuse("pad", pads + node("Pad", {"x", "pads"}, {"wide"}), "overflows");
  }
  refuse("known_pad",
         constant("one", int_tensor("", {1}, {1})) + node("ConstantOfShape", {"one"}, {"known"}) +
             constant("pads", int_tensor("", {2}, {int64_t{1} << 60, int64_t{1} << 60})) +
             node("Pad", {"known", "pads"}, {"wide"}),
         "overflows");
}

TEST_F(HostileSlow, NamesDoNotSteerTheTerminal) {
  const std::string name = "\x1b[2J\x07" + std::string(1'000'000, 'n');
  const std::string path = write("name.onnx", unchecked(node("MatMul", {"x", name}, {"y"}) +
                                                        input("x", {2, 4}) + output("y", {2, 4})));
  const ProgramResult result = run_windlass({"inspect", path});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err.find('\x1b'), std::string::npos);
  EXPECT_LT(result.err.size(), 30'000U);
}

// --- files that are none

TEST_F(HostileSlow, SpecialFiles) {
  fs::create_directory(folder_ / "folder.onnx");
  expect_refusal((folder_ / "folder.onnx").string(), "no config.json");
  expect_refusal("/dev/null", "not a regular file");
  expect_refusal("/dev/zero", "not a regular file");
  const std::string pipe = (folder_ / "pipe.onnx").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_refusal(pipe, "not a regular file");
  const std::string dangling = (folder_ / "dangling.onnx").string();
  fs::create_symlink("nowhere", dangling);
  expect_refusal(dangling, "no such file");
  const std::string loop = (folder_ / "loop.onnx").string();
  fs::create_symlink("loop.onnx", loop);
  expect_refusal(loop, "");
  fs::create_directories(folder_ / "model/config.json");
  expect_refusal((folder_ / "model").string(), "config.json");
  const std::string locked = write("locked.onnx", model(dense()));
  fs::permissions(locked, fs::perms::none);
  if (geteuid() != 0) expect_refusal(locked, "Permission denied");
}

// --- Hugging Face configs through the program

TEST_F(HostileSlow, Configs) {
  const auto refuse = [&](const std::string& name, const std::string& text,
                          const std::string& hint) {
    expect_refusal(write(name + ".json", text), hint);
  };
  refuse("empty", "", "JSON");
  refuse("cut", R"({"model_type": "gpt2", "n_la)", "JSON");
  refuse("list", "[1, 2]", "object");
  refuse("garbage", std::string(1000, '\xfe'), "JSON");
  refuse("deep", std::string(100'000, '['), "nested");
  refuse(
      "deep_objects",
      [] {
        std::string text;
        for (int i = 0; i < 100'000; ++i) text += "{\"a\":";
        return text;
      }(),
      "nested");
  refuse("large", "{\"model_type\": \"" + std::string(100'000'000, 'x') + "\"}", "larger than");
  refuse("no_type", "{}", "model_type");
  refuse("other_type", R"({"model_type": "gpt5"})", "gpt2");
  refuse("type_number", R"({"model_type": 7})", "expected a text");
  const auto gpt2 = [&](const std::string& name, const std::string& key, const std::string& value,
                        const std::string& hint) {
    refuse(name, fmt::format(R"({{"model_type": "gpt2", "{}": {}}})", key, value), hint);
  };
  gpt2("zero", "n_layer", "0", "n_layer");
  gpt2("negative", "n_embd", "-768", "n_embd");
  gpt2("infinite", "n_embd", "1e308", "n_embd");
  gpt2("too_large", "n_embd", "1e999", "");
  gpt2("fraction", "n_head", "2.5", "n_head");
  gpt2("text", "vocab_size", "\"many\"", "vocab_size");
  gpt2("truth", "n_positions", "true", "n_positions");
  gpt2("object", "n_layer", "{}", "n_layer");
  gpt2("layers", "n_layer", "1000000000", "n_layer");
  gpt2("largest", "vocab_size", "18446744073709551615", "vocab_size");
  gpt2("heads", "n_head", "7", "divided");
  gpt2("dropout", "attn_pdrop", "1.5", "attn_pdrop");
  gpt2("architectures", "architectures", "\"GPT2LMHeadModel\"", "architectures");
  refuse("overflow", R"({"model_type": "llama", "hidden_size": 2147483648,
         "intermediate_size": 2147483648, "vocab_size": 2147483648, "num_attention_heads": 1})",
         "overflow");
}

// --- inside the process: many small damages

// Imports; whatever is refused must be refused as an input, not as a bug.
void import_or_refuse(const std::string& bytes) {
  try {
    ModelOptions options;
    const Model imported = import_onnx(bytes, "m.onnx", "no such folder", options);
    totals_of(differentiate(imported.graph));
  } catch (const Error& error) {
    EXPECT_NE(error.kind(), ErrorKind::Internal) << error.message();
    EXPECT_NE(error.kind(), ErrorKind::Runtime) << error.message();
  }
}

TEST(HostileBytes, EveryPrefixIsRefused) {
  for (const char* name : {"onnx/torch_mlp.onnx", "onnx/op_lstm.onnx"}) {
    const std::string whole = read_corpus(name);
    ASSERT_FALSE(whole.empty()) << name;
    for (size_t length = 0; length < whole.size(); ++length) {
      try {
        import_onnx(std::string_view(whole).substr(0, length), "m.onnx", "");
        ADD_FAILURE() << name << " was read from its first " << length << " bytes";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::Input) << error.message();
      }
    }
  }
}

TEST(HostileBytes, FlippedBits) {
  for (const char* name :
       {"functions", "if_branch", "shape_arithmetic", "tied_table", "typed_lists", "op_conv",
        "op_slice", "op_gru", "op_resize", "torch_gpt_block_fixed"}) {
    SCOPED_TRACE(name);
    const std::string whole = read_corpus(fmt::format("onnx/{}.onnx", name));
    ASSERT_FALSE(whole.empty());
    for (uint64_t round = 0; round < 300; ++round) {
      std::string damaged = whole;
      const uint64_t changes = 1 + random_bits(1, round, 0) % 3;
      for (uint64_t k = 0; k < changes; ++k) {
        const uint64_t bits = random_bits(2, round, k);
        damaged[bits % damaged.size()] ^= static_cast<char>(1 << (bits >> 32) % 8);
      }
      import_or_refuse(damaged);
    }
  }
}

TEST(HostileBytes, ConfigsWithFlippedBits) {
  for (const char* name : {"gpt2", "llama", "mixtral", "t5", "vit", "falcon"}) {
    SCOPED_TRACE(name);
    const std::string whole = read_corpus(fmt::format("config/{}.json", name));
    ASSERT_FALSE(whole.empty());
    for (uint64_t round = 0; round < 300; ++round) {
      std::string damaged = whole;
      const uint64_t bits = random_bits(3, round, 0);
      damaged[bits % damaged.size()] ^= static_cast<char>(1 << (bits >> 32) % 8);
      try {
        model_from_config(damaged, "config.json");
      } catch (const Error& error) {
        EXPECT_NE(error.kind(), ErrorKind::Internal) << error.message();
      }
    }
  }
}

}  // namespace
}  // namespace windlass
