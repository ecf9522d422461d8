#include "windlass/model/weights.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/model/convert.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

TEST(Convert, SixteenBitNumbersSurvive) {
  for (uint32_t i = 0; i <= 0xffff; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    if (std::isnan(from_fp16(bits))) {
      EXPECT_TRUE(std::isnan(from_fp16(to_fp16(from_fp16(bits)))));
    } else {
      ASSERT_EQ(to_fp16(from_fp16(bits)), bits);
    }
    if (std::isnan(from_bf16(bits))) {
      EXPECT_TRUE(std::isnan(from_bf16(to_bf16(from_bf16(bits)))));
    } else {
      ASSERT_EQ(to_bf16(from_bf16(bits)), bits);
    }
  }
}

TEST(Convert, RoundsToNearestEven) {
  // fp16 has 10 bits after the point: steps of 2^-10 above 1, of 2^-24 below 2^-14.
  EXPECT_EQ(to_fp16(1), 0x3c00);
  EXPECT_EQ(to_fp16(1 + 0x1p-11), 0x3c00);
  EXPECT_EQ(to_fp16(1 + 0x3p-11), 0x3c02);
  EXPECT_EQ(to_fp16(1 + 0x1p-11 + 0x1p-40), 0x3c01);
  EXPECT_EQ(to_fp16(65504), 0x7bff);
  EXPECT_EQ(to_fp16(65519.99), 0x7bff);
  EXPECT_EQ(to_fp16(65520), 0x7c00);
  EXPECT_EQ(to_fp16(-1e300), 0xfc00);
  EXPECT_EQ(to_fp16(0x1p-24), 0x0001);
  EXPECT_EQ(to_fp16(0x1p-25), 0x0000);
  EXPECT_EQ(to_fp16(0x1.8p-25), 0x0001);
  EXPECT_EQ(to_fp16(-0.0), 0x8000);
  EXPECT_EQ(to_bf16(1 + 0x1p-8), 0x3f80);
  EXPECT_EQ(to_bf16(1 + 0x3p-8), 0x3f82);
  // By way of fp32 this would become a tie, and then 1.
  EXPECT_EQ(to_bf16(1 + 0x1p-8 + 0x1p-40), 0x3f81);
  EXPECT_EQ(to_bf16(3.4e38), 0x7f80);
  EXPECT_EQ(to_bf16(std::numeric_limits<double>::infinity()), 0x7f80);
}

TEST(Convert, FastWayAgreesWithTheSlowOne) {
  Rng rng(1);
  for (int i = 0; i < 100'000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(rng.bits()));
    uint16_t fast = 0;
    convert_values(std::as_bytes(std::span(&value, 1)), DType::F32,
                   std::as_writable_bytes(std::span(&fast, 1)), DType::BF16);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(from_bf16(fast)));
    } else {
      ASSERT_EQ(fast, to_bf16(static_cast<double>(value)));
    }
  }
}

TEST(Convert, WidensWholeNumbers) {
  const auto widened = [](auto value, DType dtype) {
    int64_t wide = 7;
    convert_values(std::as_bytes(std::span(&value, 1)), dtype,
                   std::as_writable_bytes(std::span(&wide, 1)), DType::I64);
    return wide;
  };
  EXPECT_EQ(widened(int32_t{-100'000}, DType::I32), -100'000);
  EXPECT_EQ(widened(int16_t{-300}, DType::I16), -300);
  EXPECT_EQ(widened(int8_t{-3}, DType::I8), -3);
  EXPECT_EQ(widened(uint8_t{253}, DType::U8), 253);
  EXPECT_EQ(widened(uint8_t{1}, DType::Bool), 1);
}

TEST(Convert, RefusesWhatIsNoNumberOfTheKind) {
  std::vector<std::byte> a(8), b(4);
  EXPECT_THROW(convert_values(a, DType::I64, b, DType::F32), Error);
}

constexpr const char* kTiny = R"("vocab_size":40,"num_hidden_layers":2,"hidden_size":8,)"
                              R"("num_attention_heads":2,"intermediate_size":12,)"
                              R"("max_position_embeddings":16,"num_key_value_heads":1)";

std::string config_of(const std::string& type, const std::string& architecture,
                      const std::string& more = "") {
  return "{" + std::string(kTiny) + R"(,"model_type":")" + type + R"(","architectures":[")" +
         architecture + "\"]" + more + "}";
}

using Renaming = std::function<std::string(const std::string&)>;

class Checkpoints : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "windlass-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  Graph configure(const std::string& config) {
    std::ofstream(folder_ / "config.json") << config;
    return load_model((folder_ / "config.json").string()).graph;
  }

  // First value of each weight, by its place among the graph's tensors.
  static float value_of(size_t tensor, int64_t element) {
    return static_cast<float>(tensor) + static_cast<float>(element) / 1024;
  }

  // Writes the weights of the graph under other names; an empty name leaves one out. Experts are
  // written one by one. `extra` is written with zeros.
  void write(const Graph& graph, const Renaming& name, const std::vector<NamedType>& extra = {}) {
    std::vector<NamedType> tensors;
    std::vector<float> values;
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      const Tensor& tensor = graph.tensors[t];
      if (tensor.role != TensorRole::Weight) continue;
      const std::string renamed = name(tensor.name);
      if (renamed.empty()) continue;
      const size_t cut = renamed.find(".experts.");
      if (cut == std::string::npos) {
        tensors.push_back({renamed, tensor.type});
      } else {
        const Shape& shape = tensor.type.shape;
        for (int64_t e = 0; e < shape[0]; ++e)
          tensors.push_back(
              {renamed.substr(0, cut + 9) + std::to_string(e) + renamed.substr(cut + 8),
               {DType::F32, {shape[1], shape[2]}}});
      }
      for (int64_t i = 0; i < element_count(tensor.type.shape); ++i)
        values.push_back(value_of(t, i));
    }
    for (const NamedType& tensor : extra) {
      tensors.push_back(tensor);
      values.resize(values.size() + static_cast<size_t>(element_count(tensor.type.shape)));
    }
    SafetensorsWriter writer((folder_ / "model.safetensors").string(), tensors);
    writer.write(std::as_bytes(std::span(values)));
    writer.finish();
  }

  Model load() { return load_model(folder_.string()); }

  // Every weight is there and has the value that was written for it.
  void expect_complete(const Model& model) {
    for (size_t t = 0; t < model.graph.tensors.size(); ++t) {
      const Tensor& tensor = model.graph.tensors[t];
      if (tensor.role != TensorRole::Weight) continue;
      const auto found = model.weights.find(TensorId(t));
      ASSERT_NE(found, model.weights.end()) << tensor.name;
      std::vector<float> values(static_cast<size_t>(element_count(tensor.type.shape)));
      read_weight(found->second, DType::F32, std::as_writable_bytes(std::span(values)));
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(values[i], value_of(t, static_cast<int64_t>(i))) << tensor.name << " " << i;
    }
  }

  std::string error() {
    try {
      load();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Input);
      return error.message();
    }
    return "no error";
  }

  fs::path folder_;
};

std::string same(const std::string& name) { return name; }

TEST_F(Checkpoints, EveryFamilyFindsItsWeights) {
  const std::pair<const char*, const char*> families[] = {{"gpt2", "GPT2LMHeadModel"},
                                                          {"llama", "LlamaForCausalLM"},
                                                          {"mistral", "MistralForCausalLM"},
                                                          {"mixtral", "MixtralForCausalLM"},
                                                          {"qwen2", "Qwen2ForCausalLM"},
                                                          {"gemma", "GemmaForCausalLM"},
                                                          {"opt", "OPTForCausalLM"},
                                                          {"gpt_neox", "GPTNeoXForCausalLM"},
                                                          {"phi", "PhiForCausalLM"},
                                                          {"falcon", "FalconForCausalLM"},
                                                          {"bert", "BertForMaskedLM"},
                                                          {"bert", "BertForPreTraining"},
                                                          {"roberta", "RobertaForMaskedLM"},
                                                          {"distilbert", "DistilBertForMaskedLM"},
                                                          {"t5", "T5ForConditionalGeneration"},
                                                          {"vit", "ViTForImageClassification"},
                                                          {"gpt2", "GPT2Model"},
                                                          {"bert", "BertModel"}};
  for (const auto& [type, architecture] : families) {
    SCOPED_TRACE(architecture);
    const std::string rotary = R"(,"rotary_pct":1.0,"partial_rotary_factor":1.0,"head_dim":4)";
    const Graph graph = configure(config_of(type, architecture, rotary));
    write(graph, same);
    const Model model = load();
    expect_complete(model);
    // As stored without a head, and as stored with one.
    for (const char* network :
         {"transformer.", "model.", "bert.", "roberta.", "gpt_neox.", "vit."}) {
      const std::string prefix = network;
      write(graph, [&](const std::string& name) {
        return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
      });
      expect_complete(load());
    }
  }
}

TEST_F(Checkpoints, ANetworkIsFoundInAModelWithAHead) {
  const std::tuple<const char*, const char*, std::string> networks[] = {
      {"gpt2", "GPT2Model", "transformer."},
      {"llama", "LlamaModel", "model."},
      {"opt", "OPTModel", "model."},
      {"bert", "BertModel", "bert."},
      {"distilbert", "DistilBertModel", "distilbert."},
      {"vit", "ViTModel", "vit."}};
  for (const auto& network : networks) {
    SCOPED_TRACE(std::get<1>(network));
    const Graph graph = configure(config_of(std::get<0>(network), std::get<1>(network)));
    write(graph, [&](const std::string& name) { return std::get<2>(network) + name; });
    expect_complete(load());
  }
}

TEST_F(Checkpoints, Gpt2AsItIsPublished) {
  const Graph graph = configure(config_of("gpt2", "GPT2LMHeadModel"));
  const auto bare = [](const std::string& name) { return name.substr(name.find('.') + 1); };
  write(
      graph, bare,
      {{"h.0.attn.bias", {DType::F32, {1, 1, 16, 16}}}, {"lm_head.weight", {DType::F32, {40, 8}}}});
  const Model model = load();
  expect_complete(model);
  EXPECT_TRUE(model.notes.empty());
  // Only the other one of the tied pair.
  write(graph, [](const std::string& name) {
    return name == "transformer.wte.weight" ? "lm_head.weight" : name;
  });
  expect_complete(load());
}

TEST_F(Checkpoints, OldNamesOfNorms) {
  const Graph graph = configure(config_of("bert", "BertForMaskedLM"));
  write(graph,
        [](std::string name) {
          for (const auto& [now, before] : {std::pair("LayerNorm.weight", "LayerNorm.gamma"),
                                            std::pair("LayerNorm.bias", "LayerNorm.beta")})
            if (name.ends_with(now)) name.replace(name.find(now), std::string(now).size(), before);
          return name;
        },
        {{"bert.pooler.dense.weight", {DType::F32, {8, 8}}},
         {"cls.seq_relationship.bias", {DType::F32, {2}}},
         {"bert.embeddings.position_ids", {DType::F32, {1, 16}}}});
  const Model model = load();
  expect_complete(model);
  ASSERT_EQ(model.notes.size(), 1u);
  EXPECT_THAT(model.notes[0], AllOf(HasSubstr("parts that the model has not"),
                                    HasSubstr("bert.pooler.dense.weight")));
}

TEST_F(Checkpoints, AnEncoderLeavesTheDecoderOut) {
  const std::string whole = config_of("t5", "T5ForConditionalGeneration");
  const Graph graph = configure(whole);
  write(graph, same,
        {{"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
          {DType::F32, {32, 2}}}});
  expect_complete(load());
  configure(config_of("t5", "T5EncoderModel"));
  const Model model = load();
  size_t weights = 0;
  for (const Tensor& tensor : model.graph.tensors)
    weights += tensor.role == TensorRole::Weight ? 1 : 0;
  EXPECT_EQ(model.weights.size(), weights);
  EXPECT_THAT(model.notes, testing::Contains(HasSubstr("decoder.block.0.")));
}

TEST_F(Checkpoints, NewHeadsBeginAnew) {
  const Graph graph = configure(config_of("bert", "BertForSequenceClassification"));
  write(graph, [](const std::string& name) {
    return name.starts_with("classifier.") ? std::string() : name;
  });
  const Model model = load();
  ASSERT_EQ(model.notes.size(), 1u);
  EXPECT_THAT(model.notes[0], HasSubstr("classifier.weight, classifier.bias"));
}

TEST_F(Checkpoints, ErrorsListWhatDoesNotFit) {
  const Graph graph = configure(config_of("gpt2", "GPT2LMHeadModel"));
  write(graph, [](const std::string& name) {
    return name.find("h.1.") == std::string::npos ? name : std::string();
  });
  EXPECT_THAT(error(), AllOf(HasSubstr("model.safetensors: 12 of the model's weights"),
                             HasSubstr("transformer.h.1.ln_1.weight is missing"),
                             HasSubstr("and 7 more"), HasSubstr("Give the config.json itself")));
  write(graph, same, {{"transformer.h.2.ln_1.weight", {DType::F32, {8}}}});
  EXPECT_THAT(error(), HasSubstr("no place in the model:\n  transformer.h.2.ln_1.weight"));
  const Graph wider = configure(
      R"({"model_type":"gpt2","n_embd":8,"n_head":2,"n_layer":2,"vocab_size":41,"n_positions":16})");
  write(graph, same);
  EXPECT_THAT(error(), HasSubstr("transformer.wte.weight is fp32[40, 8] in the checkpoint, "
                                 "fp32[41, 8] in the model"));
  std::ofstream(folder_ / "model.safetensors") << "garbage that is no checkpoint";
  EXPECT_THAT(error(), HasSubstr("not a safetensors file"));
}

TEST_F(Checkpoints, UntiedTablesAreNotShared) {
  const Graph graph =
      configure(config_of("gpt2", "GPT2LMHeadModel", R"(,"tie_word_embeddings":false)"));
  write(graph, same);
  expect_complete(load());
  write(graph,
        [](const std::string& name) { return name == "lm_head.weight" ? std::string() : name; });
  EXPECT_THAT(error(), HasSubstr("lm_head.weight is missing"));
}

TEST_F(Checkpoints, MissingExpertsAreNamed) {
  const Graph graph = configure(config_of("mixtral", "MixtralForCausalLM"));
  write(graph, [](const std::string& name) {
    return name.ends_with("layers.1.block_sparse_moe.experts.w2.weight") ? std::string() : name;
  });
  EXPECT_THAT(error(), HasSubstr("model.layers.1.block_sparse_moe.experts.0.w2.weight is missing"));
}

TEST_F(Checkpoints, WeightsAreReadAsAnyType) {
  const std::string path = (folder_ / "w").string();
  // More than one chunk.
  std::vector<float> stored(200'000);
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = std::sin(static_cast<float>(i));
  std::ofstream(path, std::ios::binary)
      << "12345678" << std::string(reinterpret_cast<const char*>(stored.data()), 4 * stored.size());
  WeightLocation location{path, 8, static_cast<int64_t>(4 * stored.size()), DType::F32, {}};
  std::vector<double> doubles(stored.size());
  read_weight(location, DType::F64, std::as_writable_bytes(std::span(doubles)));
  std::vector<uint16_t> halves(stored.size()), brains(stored.size());
  read_weight(location, DType::F16, std::as_writable_bytes(std::span(halves)));
  read_weight(location, DType::BF16, std::as_writable_bytes(std::span(brains)));
  for (size_t i = 0; i < stored.size(); ++i) {
    const auto exact = static_cast<double>(stored[i]);
    ASSERT_EQ(doubles[i], exact);
    ASSERT_EQ(halves[i], to_fp16(exact));
    ASSERT_EQ(brains[i], to_bf16(exact));
  }
  location.offset = 16;
  try {
    read_weight(location, DType::F64, std::as_writable_bytes(std::span(doubles)));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), AllOf(testing::StartsWith(path), HasSubstr("cut off")));
  }
  fs::remove(path);
  EXPECT_THROW(read_weight(location, DType::F64, std::as_writable_bytes(std::span(doubles))),
               Error);
}

}  // namespace
}  // namespace windlass
