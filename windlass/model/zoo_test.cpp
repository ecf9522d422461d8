// The zoo as a whole: names, parameters, options; and the transformers in it.
#include "windlass/model/zoo.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <optional>
#include <ostream>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

ModelOptions sized(std::optional<int64_t> batch, std::optional<int64_t> sequence = {},
                   std::optional<int64_t> image = {}) {
  ModelOptions options;
  options.batch = batch;
  options.sequence = sequence;
  options.image = image;
  return options;
}

ModelOptions with_dimension(const std::string& name, int64_t size) {
  ModelOptions options;
  options.dimensions[name] = size;
  return options;
}

int64_t count_ops(const Graph& graph, OpKind kind) {
  return std::ranges::count(graph.ops, kind, &Op::kind);
}

const Tensor& input_of(const Graph& graph) { return graph[graph.inputs.at(0)]; }

struct Expected {
  const char* name;
  int64_t parameters;
};

void PrintTo(const Expected& expected, std::ostream* out) { *out << expected.name; }

class TransformerZoo : public testing::TestWithParam<Expected> {};

TEST_P(TransformerZoo, CountsAreExact) {
  const Graph graph = build_zoo_model(GetParam().name);
  EXPECT_EQ(parameter_count(graph), GetParam().parameters);
  EXPECT_EQ(graph.name, GetParam().name);
  EXPECT_TRUE(graph.loss.valid());
}

INSTANTIATE_TEST_SUITE_P(
    Published, TransformerZoo,
    testing::Values(
        Expected{"gpt2-small", 124'439'808}, Expected{"gpt2-medium", 354'823'168},
        Expected{"gpt2-large", 774'030'080}, Expected{"gpt2-xl", 1'557'611'200},
        // With h = 4096: l (12 h^2 + 13 h) + (50257 + 1024 + 2) h, l = 50, 100, 150, 200
        Expected{"gpt2-10b", 10'279'047'168}, Expected{"gpt2-20b", 20'348'039'168},
        Expected{"gpt2-30b", 30'417'031'168}, Expected{"gpt2-40b", 40'486'023'168},
        // 96 (12 h^2 + 13 h) + (50257 + 2048 + 2) h, h = 12288
        Expected{"gpt3-175b", 174'604'259'328}, Expected{"bert-base", 110'106'428},
        Expected{"bert-large", 336'226'108},
        // The bytes of Harmony's profile: (127131648 + 96 * 50384896 + 4198400 + 8200) / 4
        Expected{"bert-96", 1'242'072'066}, Expected{"llama2-7b", 6'738'415'616},
        Expected{"llama2-13b", 13'015'864'320}, Expected{"llama2-70b", 68'976'648'192},
        Expected{"llama3-8b", 8'030'261'248}, Expected{"llama3-70b", 70'553'706'496},
        Expected{"llama3-405b", 405'853'388'800},
        // torchvision
        Expected{"vit-b-16", 86'567'656}, Expected{"vit-b-32", 88'224'232},
        Expected{"vit-l-16", 304'326'632}, Expected{"vit-l-32", 306'535'400},
        Expected{"swin-t", 28'288'354}, Expected{"swin-s", 49'606'258},
        Expected{"swin-b", 87'768'224}, Expected{"swin-l", 196'532'476},
        // 6 (4 + 8) h^2 of attention, 12 (2 h f + f + h), 6 (2 + 3) norms of 2 h, 37000 h;
        // h = 512, f = 2048 and h = 1024, f = 4096
        Expected{"transformer-base", 63'045'632}, Expected{"transformer-big", 214'171'648},
        // 784 * 1024 + 2 * 1024^2 + 1024 * 10 + 3 * 1024 + 10
        Expected{"mlp", 2'913'290}));

TEST(Zoo, EveryPresetBuilds) {
  for (const std::string& name : zoo_names()) {
    const Graph graph = build_zoo_model(name);
    EXPECT_GT(parameter_count(graph), 0) << name;
    EXPECT_TRUE(graph.loss.valid()) << name;
    EXPECT_TRUE(is_zoo_name(name)) << name;
    std::set<std::string> ops;
    for (const Op& op : graph.ops)
      EXPECT_TRUE(ops.insert(op.name).second) << name << ": " << op.name;
    const Graph batched = build_zoo_model(name, sized(3));
    EXPECT_EQ(input_of(batched).type.shape[0], 3) << name;
    EXPECT_EQ(parameter_count(batched), parameter_count(graph)) << name;
  }
}

TEST(Zoo, NamesAreSortedLowerCaseAndDistinctWithoutHyphens) {
  const std::vector<std::string> names = zoo_names();
  EXPECT_TRUE(std::ranges::is_sorted(names));
  for (const std::string& name : names) {
    EXPECT_TRUE(std::ranges::none_of(name, [](unsigned char c) { return std::isupper(c); }));
    std::string bare = name;
    std::erase(bare, '-');
    EXPECT_EQ(build_zoo_model(bare).name, name);
  }
}

TEST(Zoo, AcceptsOtherSpellings) {
  EXPECT_EQ(build_zoo_model("gpt2").name, "gpt2-small");
  EXPECT_EQ(build_zoo_model("GPT2-XL").name, "gpt2-xl");
  EXPECT_EQ(build_zoo_model("llama27b").name, "llama2-7b");
  EXPECT_EQ(build_zoo_model("vit-b/16").name, "vit-b-16");
  EXPECT_EQ(build_zoo_model("vit_b_16").name, "vit-b-16");
  EXPECT_TRUE(is_zoo_name("bertlarge:layers=2"));
  EXPECT_FALSE(is_zoo_name("model.onnx"));
  EXPECT_FALSE(is_zoo_name(""));
  EXPECT_FALSE(is_zoo_name("-"));
}

TEST(Zoo, ParametersChangeTheModel) {
  const Graph graph = build_zoo_model("gpt2:layers=10,hidden=256");
  EXPECT_EQ(graph.name, "gpt2-small:hidden=256,layers=10");
  EXPECT_EQ(count_ops(graph, OpKind::Attention), 10);
  // 10 (12 h^2 + 13 h) + (50257 + 1024 + 2) h, h = 256
  EXPECT_EQ(parameter_count(graph), 21'026'048);
  EXPECT_EQ(count_ops(build_zoo_model("gpt2:dropout=0"), OpKind::Dropout), 0);
  EXPECT_EQ(input_of(build_zoo_model("gpt2:seq=128,batch=2")).type.shape, (Shape{2, 128}));
  EXPECT_EQ(parameter_count(build_zoo_model("gpt2:seq=128")), 124'439'808);
  // A window that does not divide the image and patches that do not pair up are padded.
  EXPECT_EQ(parameter_count(build_zoo_model("swin-t:image=200")), 28'288'354);
}

TEST(Zoo, OptionsSetTheSize) {
  EXPECT_EQ(input_of(build_zoo_model("llama2-7b", sized(2, 512))).type.shape, (Shape{2, 512}));
  EXPECT_EQ(input_of(build_zoo_model("vit-b-16", sized({}, {}, 384))).type.shape,
            (Shape{1, 3, 384, 384}));
  EXPECT_EQ(input_of(build_zoo_model("gpt2:batch=2", sized(2))).type.shape[0], 2);
  ModelOptions half;
  half.dtype = DType::F16;
  EXPECT_EQ(input_of(build_zoo_model("mlp", half)).type.dtype, DType::F16);
}

struct BrokenName {
  const char* name;
  const char* message;
  ModelOptions options = {};
};

void PrintTo(const BrokenName& broken, std::ostream* out) { *out << broken.name; }

class ZooErrors : public testing::TestWithParam<BrokenName> {};

TEST_P(ZooErrors, SayWhatIsWrong) {
  const std::clock_t start = std::clock();
  try {
    build_zoo_model(GetParam().name, GetParam().options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input) << error.message();
    EXPECT_THAT(error.message(), AllOf(StartsWith(GetParam().name), HasSubstr(GetParam().message)));
  }
  // Milliseconds of work; nothing is built before it is refused.
  EXPECT_LT(std::clock() - start, 20 * CLOCKS_PER_SEC);
}

INSTANTIATE_TEST_SUITE_P(Names, ZooErrors,
                         testing::Values(BrokenName{"resnt-50", "did you mean \"resnet-50\""},
                                         BrokenName{"gpt-2-xxl", "did you mean"},
                                         BrokenName{"something else entirely", "there are alexnet"},
                                         BrokenName{"", "no model"}));

INSTANTIATE_TEST_SUITE_P(
    Parameters, ZooErrors,
    testing::Values(
        BrokenName{"gpt2:layer=3", "did you mean \"layers\""},
        BrokenName{"gpt2:layers", "key=value"}, BrokenName{"gpt2:layers=", "whole number"},
        BrokenName{"gpt2:layers=two", "whole number"},
        BrokenName{"gpt2:layers=2.5", "whole number"},
        BrokenName{"gpt2:layers=1,layers=2", "twice"}, BrokenName{"gpt2:,", "key=value"},
        BrokenName{"gpt2:layers=0", "layers is 0"}, BrokenName{"gpt2:layers=-1", "layers is -1"},
        BrokenName{"gpt2:layers=1000000000", "1 to 2000"},
        BrokenName{"vgg-16:depth1=1500,depth2=1500", "deep"},
        BrokenName{"gpt2:layers=99999999999999999999", "too large"},
        BrokenName{"gpt2:hidden=9999999999", "hidden is"},
        BrokenName{"gpt2:dropout=100", "percent"}, BrokenName{"gpt2:heads=7", "7 attention heads"},
        BrokenName{"gpt2:hidden=200", "heads"}, BrokenName{"gpt2:sequence=2048", "positions=2048"},
        BrokenName{"gpt2:hidden=2147483648,vocab=2147483648,positions=2147483648", "overflow"},
        BrokenName{"llama2-7b:key_heads=5", "5 key-value heads"},
        BrokenName{"swin-t:window=1000", "window is 1000"},
        BrokenName{"swin-t:image=65536,window=2", "windows"},
        BrokenName{"transformer:hidden=2147483648", "hidden is"},
        BrokenName{"vit:patch=300", "300"}));

INSTANTIATE_TEST_SUITE_P(
    Options, ZooErrors,
    testing::Values(BrokenName{"resnet-50", "no sequence length", sized({}, 128)},
                    BrokenName{"gpt2", "no image size", sized({}, {}, 224)},
                    BrokenName{"gpt2", "batch is 0", sized(0)},
                    BrokenName{"gpt2:batch=2", "contradicts", sized(4)},
                    BrokenName{"gpt2", "no dimension", with_dimension("N", 1)}));

}  // namespace
}  // namespace windlass
