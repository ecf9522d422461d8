// Parameters and forward multiply-adds of the convolutional and recurrent networks of the zoo.
// Those of torchvision's networks are its own: parameters by numel, multiply-adds by forward hooks
// on convolutions (output elements * input channels / groups * kernel) and linear layers (output
// elements * inputs), for one image.
#include <algorithm>
#include <ostream>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/graph/op_info.h"
#include "windlass/model/zoo.h"

namespace windlass {
namespace {

int64_t multiply_adds(const Graph& graph) {
  Arithmetic total;
  for (const Op& op : graph.ops)
    if (op.pass == Pass::Forward) total += arithmetic_of(graph, op);
  return static_cast<int64_t>(total.multiply_adds);
}

int64_t count_ops(const Graph& graph, OpKind kind) {
  return std::ranges::count(graph.ops, kind, &Op::kind);
}

std::string error_of(const std::string& name) {
  try {
    build_zoo_model(name);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input) << name << ": " << error.message();
    return error.message();
  }
  return "";
}

struct Expected {
  const char* name;
  int64_t parameters;
  int64_t multiply_adds;
};

void PrintTo(const Expected& expected, std::ostream* out) { *out << expected.name; }

class ZooCounts : public testing::TestWithParam<Expected> {};

TEST_P(ZooCounts, AreExact) {
  const Graph graph = build_zoo_model(GetParam().name);
  check_graph(graph);
  EXPECT_EQ(parameter_count(graph), GetParam().parameters);
  EXPECT_EQ(multiply_adds(graph), GetParam().multiply_adds);
  EXPECT_TRUE(graph.loss.valid());
  std::set<std::string> names;
  for (const Op& op : graph.ops) EXPECT_TRUE(names.insert(op.name).second) << op.name;
}

INSTANTIATE_TEST_SUITE_P(Torchvision, ZooCounts,
                         testing::Values(Expected{"alexnet", 61'100'840, 714'188'480},
                                         Expected{"vgg-11", 132'863'336, 7'609'090'048},
                                         Expected{"vgg-13", 133'047'848, 11'308'466'176},
                                         Expected{"vgg-16", 138'357'544, 15'470'264'320},
                                         Expected{"vgg-16:batch_norm=1", 138'365'992,
                                                  15'470'264'320},
                                         Expected{"vgg-19", 143'667'240, 19'632'062'464},
                                         Expected{"vgg-416", 577'894'184, 644'364'206'080},
                                         Expected{"resnet-18", 11'689'512, 1'814'073'344},
                                         Expected{"resnet-34", 21'797'672, 3'663'761'408},
                                         Expected{"resnet-50", 25'557'032, 4'089'184'256},
                                         Expected{"resnet-101", 44'549'160, 7'801'405'440},
                                         Expected{"resnet-152", 60'192'808, 11'513'626'624},
                                         Expected{"resnet-1026", 801'800'232, 118'344'421'376},
                                         Expected{"wide-resnet-50-2", 68'883'240, 11'398'021'120},
                                         Expected{"wide-resnet-101-2", 126'886'696, 22'753'050'624},
                                         Expected{"resnext-50-32x4d", 25'028'904, 4'230'479'872},
                                         Expected{"resnext-101-32x8d", 88'791'336, 16'414'015'488},
                                         Expected{"densenet-121", 7'978'856, 2'834'161'664},
                                         Expected{"densenet-161", 28'681'000, 7'727'907'072},
                                         Expected{"densenet-169", 14'149'480, 3'359'843'328},
                                         Expected{"densenet-201", 20'013'928, 4'291'365'888},
                                         Expected{"inception-v3", 23'834'568, 5'713'216'096},
                                         Expected{"googlenet", 6'624'904, 1'498'376'192},
                                         Expected{"mobilenet-v2", 3'504'872, 300'774'272},
                                         Expected{"squeezenet-1.0", 1'248'424, 818'924'576},
                                         Expected{"squeezenet-1.1", 1'235'496, 349'151'936},
                                         Expected{"efficientnet-b0", 5'288'548, 385'814'752},
                                         Expected{"efficientnet-b1", 7'794'184, 686'802'832},
                                         Expected{"efficientnet-b2", 9'109'994, 1'087'529'456},
                                         Expected{"efficientnet-b3", 12'233'232, 1'827'141'392},
                                         Expected{"efficientnet-b4", 19'341'616, 4'393'771'024},
                                         Expected{"efficientnet-b5", 30'389'784, 10'266'384'752},
                                         Expected{"efficientnet-b6", 43'040'704, 19'067'593'536},
                                         Expected{"efficientnet-b7", 66'347'960, 37'745'884'192},
                                         Expected{"convnext-t", 28'589'128, 4'455'531'264},
                                         Expected{"convnext-s", 50'223'688, 8'683'712'256},
                                         Expected{"convnext-b", 88'591'464, 15'354'729'472},
                                         Expected{"convnext-l", 197'767'336, 34'361'433'600}));

INSTANTIATE_TEST_SUITE_P(
    OtherImageSizes, ZooCounts,
    testing::Values(Expected{"alexnet:image=448", 61'100'840, 2'832'827'072},
                    Expected{"vgg-16:image=448", 138'357'544, 61'510'156'288},
                    Expected{"resnet-50:image=256", 25'557'032, 5'340'348'416},
                    Expected{"inception-v3:image=331", 23'834'568, 7'120'186'976},
                    Expected{"googlenet:image=225", 6'624'904, 1'500'492'992}));

// A transposed convolution of c to n channels has c * n * 4 + n parameters and, with stride 2 and
// kernel 2, c * n * 4 multiply-adds for each input pixel. Peer: the same network written in
// PyTorch.
INSTANTIATE_TEST_SUITE_P(UNet, ZooCounts,
                         testing::Values(Expected{"unet", 31'030'658, 192'384'335'872},
                                         Expected{"unet:channels=3,image=256", 31'031'810,
                                                  48'171'581'440},
                                         Expected{"unet:channels=3,image=256,batch_norm=1",
                                                  31'037'698, 48'171'581'440}));

// An LSTM layer of h inputs and h outputs has 4 h (h + h) weights and 2 * 4 h biases: 8 h^2 + 8 h.
//   rnnlm, h = 2048, V = 100,000, s = 256; tied, V h parameters fewer:
//     parameters     2 (8 h^2 + 8 h) + V h + (V h + V) = 67,141,632 + 204,800,000 + 204,900,000
//     multiply-adds  s (2 * 8 h^2 + V h) = 256 (67,108,864 + 204,800,000)
//   nmt, h = 1024, V = 32,000, s = 40, two layers a side, 2 V h for the embeddings:
//     parameters     4 (8 h^2 + 8 h) + 2 h^2 + 3 V h = 33,587,200 + 2,097,152 + 98,304,000
//     multiply-adds  s (4 * 8 h^2 + 2 s h + 2 h^2 + V h)
//                    = 40 (33,554,432 + 81,920 + 2,097,152 + 32,768,000)
INSTANTIATE_TEST_SUITE_P(Recurrent, ZooCounts,
                         testing::Values(Expected{"rnnlm", 476'841'632, 69'608'669'184},
                                         Expected{"rnnlm:tied=1", 272'041'632, 69'608'669'184},
                                         Expected{"nmt", 133'988'352, 2'740'060'160}));

TEST(CnnZoo, BatchScalesMultiplyAdds) {
  for (const char* name : {"resnet-18", "densenet-121", "unet:image=64", "nmt"}) {
    ModelOptions eight;
    eight.batch = 8;
    EXPECT_EQ(multiply_adds(build_zoo_model(name, eight)), 8 * multiply_adds(build_zoo_model(name)))
        << name;
  }
}

TEST(CnnZoo, LayersOfTheDeepNetworksAreAsNamed) {
  const Graph vgg = build_zoo_model("vgg-416");
  EXPECT_EQ(count_ops(vgg, OpKind::Conv) + count_ops(vgg, OpKind::Linear), 416);
  // Three convolutions of shortcuts are not counted as layers.
  const Graph resnet = build_zoo_model("resnet-1026");
  EXPECT_EQ(count_ops(resnet, OpKind::Conv) - 3 + count_ops(resnet, OpKind::Linear), 1026);
}

TEST(CnnZoo, DropoutIsWhereTheOriginalsHaveIt) {
  EXPECT_EQ(count_ops(build_zoo_model("alexnet"), OpKind::Dropout), 2);
  EXPECT_EQ(count_ops(build_zoo_model("vgg-16"), OpKind::Dropout), 2);
  EXPECT_EQ(count_ops(build_zoo_model("inception-v3"), OpKind::Dropout), 1);
  EXPECT_EQ(count_ops(build_zoo_model("googlenet"), OpKind::Dropout), 1);
  EXPECT_EQ(count_ops(build_zoo_model("densenet-121"), OpKind::Dropout), 0);
  EXPECT_EQ(count_ops(build_zoo_model("resnet-50"), OpKind::Dropout), 0);
}

// 448 pixels leave AlexNet 13 x 13 features: 6 cells of 3 pixels, 2 apart. 32 pixels leave VGG one,
// which is repeated.
TEST(CnnZoo, FeaturesArePooledAsPyTorchPoolsThem) {
  const auto op_called = [](const Graph& graph, const std::string& name) {
    return std::ranges::find(graph.ops, name, &Op::name);
  };
  const Graph alexnet = build_zoo_model("alexnet:image=448");
  const auto pool = op_called(alexnet, "avgpool");
  ASSERT_NE(pool, alexnet.ops.end());
  EXPECT_EQ(std::get<PoolAttrs>(pool->attrs).kernel, (Ints{3, 3}));
  EXPECT_EQ(std::get<PoolAttrs>(pool->attrs).stride, (Ints{2, 2}));

  const Graph vgg = build_zoo_model("vgg-16:image=32");
  const auto repeat = op_called(vgg, "avgpool");
  ASSERT_NE(repeat, vgg.ops.end());
  EXPECT_EQ(repeat->kind, OpKind::Resize);
  EXPECT_EQ(parameter_count(vgg), 138'357'544);
}

TEST(CnnZoo, ImpossibleCombinationsAreInputErrors) {
  // 320 / 32 = 10 features a side, 10 mod 7 = 3.
  EXPECT_NE(error_of("vgg-16:image=320").find("10 x 10"), std::string::npos);
  EXPECT_NE(error_of("alexnet:image=192").find("avgpool"), std::string::npos);
  EXPECT_NE(error_of("unet:image=100").find("multiple of 16"), std::string::npos);
  EXPECT_NE(error_of("unet:levels=40").find("levels"), std::string::npos);
  EXPECT_NE(error_of("resnet-18:groups=2").find("bottleneck"), std::string::npos);
  EXPECT_NE(error_of("squeezenet:version=12").find("version"), std::string::npos);
  for (const char* name :
       {"alexnet:image=8", "vgg-16:image=16", "inception-v3:image=40", "squeezenet:image=4",
        "convnext-t:image=3", "densenet:image=16", "alexnet:classes=0", "rnnlm:hidden=2000000000"})
    EXPECT_FALSE(error_of(name).empty()) << name;
}

}  // namespace
}  // namespace windlass
