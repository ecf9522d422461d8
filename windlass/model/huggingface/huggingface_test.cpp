#include "windlass/model/huggingface/huggingface.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <ostream>
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

Model read(std::string_view config, const ModelOptions& options = {}) {
  return model_from_config(config, "config.json", options);
}

const Tensor* find_tensor(const Graph& graph, std::string_view name) {
  const auto found = std::ranges::find(graph.tensors, name, &Tensor::name);
  return found == graph.tensors.end() ? nullptr : &*found;
}

Shape shape_of(const Graph& graph, std::string_view name) {
  const Tensor* tensor = find_tensor(graph, name);
  return tensor == nullptr ? Shape{} : tensor->type.shape;
}

int64_t count_ops(const Graph& graph, OpKind kind) {
  return std::ranges::count(graph.ops, kind, &Op::kind);
}

const AttentionAttrs& attention_of(const Graph& graph, size_t index) {
  for (const Op& op : graph.ops)
    if (op.kind == OpKind::Attention && index-- == 0) return std::get<AttentionAttrs>(op.attrs);
  throw Error(ErrorKind::Internal, "no such attention");
}

TEST(HuggingFace, NamesWeightsAsTheCheckpointDoes) {
  const Graph gpt2 = read(R"({"model_type": "gpt2", "n_layer": 2})").graph;
  EXPECT_EQ(shape_of(gpt2, "transformer.wte.weight"), (Shape{50257, 768}));
  EXPECT_EQ(shape_of(gpt2, "transformer.wpe.weight"), (Shape{1024, 768}));
  EXPECT_EQ(shape_of(gpt2, "transformer.h.1.attn.c_attn.weight"), (Shape{768, 2304}));
  EXPECT_EQ(shape_of(gpt2, "transformer.h.1.mlp.c_proj.bias"), (Shape{768}));
  EXPECT_EQ(find_tensor(gpt2, "lm_head.weight"), nullptr);

  const Graph mixtral = read(R"({"model_type": "mixtral", "num_hidden_layers": 1})").graph;
  EXPECT_EQ(shape_of(mixtral, "model.layers.0.block_sparse_moe.experts.w2.weight"),
            (Shape{8, 4096, 14336}));
  EXPECT_EQ(shape_of(mixtral, "model.layers.0.self_attn.k_proj.weight"), (Shape{1024, 4096}));
  EXPECT_EQ(shape_of(mixtral, "lm_head.weight"), (Shape{32000, 4096}));
  EXPECT_EQ(count_ops(mixtral, OpKind::GroupedLinear), 3);

  const Graph t5 = read(R"({"model_type": "t5"})").graph;
  EXPECT_EQ(shape_of(t5, "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
            (Shape{32, 8}));
  EXPECT_EQ(shape_of(t5, "decoder.block.5.layer.1.EncDecAttention.k.weight"), (Shape{512, 512}));

  const Graph base = read(R"({"model_type": "opt", "architectures": ["OPTModel"]})").graph;
  EXPECT_EQ(shape_of(base, "decoder.embed_positions.weight"), (Shape{2050, 768}));
}

TEST(HuggingFace, AttentionFollowsTheFamily) {
  const Graph mistral = read(R"({"model_type": "mistral", "num_hidden_layers": 1})").graph;
  EXPECT_TRUE(attention_of(mistral, 0).causal);
  EXPECT_EQ(attention_of(mistral, 0).window, 4096);
  const Graph unbounded =
      read(R"({"model_type": "mistral", "num_hidden_layers": 1, "sliding_window": null})").graph;
  EXPECT_EQ(attention_of(unbounded, 0).window, 0);
  // Of 3 layers those from the second on have the window.
  const Graph qwen2 = read(R"({"model_type": "qwen2", "num_hidden_layers": 3,
      "use_sliding_window": true, "sliding_window": 128, "max_window_layers": 1})")
                          .graph;
  EXPECT_EQ(attention_of(qwen2, 0).window, 0);
  EXPECT_EQ(attention_of(qwen2, 1).window, 128);
  const Graph t5 = read(R"({"model_type": "t5", "num_layers": 1})").graph;
  EXPECT_EQ(attention_of(t5, 0).scale, 1);
  EXPECT_FALSE(attention_of(t5, 0).causal);
  EXPECT_TRUE(attention_of(t5, 1).causal);
  const Graph bert = read(R"({"model_type": "bert", "num_hidden_layers": 1})").graph;
  EXPECT_FALSE(attention_of(bert, 0).causal);
  EXPECT_DOUBLE_EQ(attention_of(bert, 0).scale, 0.125);  // 1 / sqrt(768 / 12)
  EXPECT_EQ(attention_of(bert, 0).dropout, 0.1);
  // Embeddings, attention output, feed-forward output.
  EXPECT_EQ(count_ops(bert, OpKind::Dropout), 3);
  const Graph dry = read(R"({"model_type": "bert", "num_hidden_layers": 1,
      "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0.0})")
                        .graph;
  EXPECT_EQ(count_ops(dry, OpKind::Dropout), 0);
}

TEST(HuggingFace, OptionsSetTheSize) {
  ModelOptions options = sized(4, 128);
  options.dtype = DType::BF16;
  const Model model = read(R"({"model_type": "llama", "num_hidden_layers": 2})", options);
  EXPECT_EQ(shape_of(model.graph, "input_ids"), (Shape{4, 128}));
  EXPECT_EQ(shape_of(model.graph, "lm_head"), (Shape{4, 128, 32000}));
  EXPECT_EQ(find_tensor(model.graph, "lm_head.weight")->type.dtype, DType::BF16);
  EXPECT_EQ(shape_of(read(R"({"model_type": "mistral"})").graph, "input_ids"), (Shape{1, 2048}));
  EXPECT_EQ(shape_of(read(R"({"model_type": "bert"})").graph, "input_ids"), (Shape{1, 512}));
  // (384 / 16)^2 patches and the class token
  const Model vit = read(R"({"model_type": "vit"})", sized({}, {}, 384));
  EXPECT_EQ(shape_of(vit.graph, "vit.embeddings.position_embeddings"), (Shape{1, 577, 768}));
}

TEST(HuggingFace, SaysWhatTheUserShouldKnow) {
  const auto notes = [](std::string_view config, const ModelOptions& options = {}) {
    return testing::PrintToString(read(config, options).notes);
  };
  EXPECT_THAT(notes(R"({"model_type": "gpt2", "architectures": ["GPT2Model"]})"),
              HasSubstr("mean-squared-error"));
  EXPECT_THAT(notes(R"({"model_type": "llama", "torch_dtype": "bfloat16"})"),
              HasSubstr("bfloat16"));
  EXPECT_EQ(notes(R"({"model_type": "llama", "torch_dtype": "float32"})"), "{}");
  EXPECT_THAT(notes(R"({"model_type": "llama"})", sized({}, 4096)), HasSubstr("4096"));
}

struct Broken {
  const char* config;
  ErrorKind kind;
  const char* message;
  ModelOptions options = {};
};

void PrintTo(const Broken& broken, std::ostream* out) {
  *out << std::string_view(broken.config).substr(0, 100);
}

class HuggingFaceErrors : public testing::TestWithParam<Broken> {};

TEST_P(HuggingFaceErrors, NameTheKey) {
  try {
    read(GetParam().config, GetParam().options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), GetParam().kind) << error.message();
    EXPECT_THAT(error.message(), AllOf(StartsWith("config.json: "), HasSubstr(GetParam().message)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Texts, HuggingFaceErrors,
    testing::Values(
        Broken{"", ErrorKind::Input, "not valid JSON"},
        Broken{"{", ErrorKind::Input, "not valid JSON"},
        Broken{"\xff\xfe", ErrorKind::Input, "not valid JSON"},
        Broken{"[1, 2]", ErrorKind::Input, "expected a JSON object"},
        Broken{"{}", ErrorKind::Input, "model_type"},
        Broken{R"({"model_type": 7})", ErrorKind::Input, "model_type"},
        Broken{R"({"model_type": "gpt3"})", ErrorKind::Unsupported, "did you mean \"gpt2\""},
        Broken{R"({"model_type": "mamba"})", ErrorKind::Unsupported, "known are bert, distilbert"},
        Broken{R"({"model_type": "gpt2", "architectures": ["GPT2DoubleHeadsModel"]})",
               ErrorKind::Unsupported, "GPT2DoubleHeadsModel"},
        Broken{R"({"model_type": "phi", "architectures": ["PhiForQuestionAnswering"]})",
               ErrorKind::Unsupported, "...ForCausalLM"},
        Broken{R"({"model_type": "gpt2", "architectures": "GPT2LMHeadModel"})", ErrorKind::Input,
               "architectures"},
        Broken{R"({"model_type": "gpt2", "architectures": [1]})", ErrorKind::Input,
               "architectures"}));

INSTANTIATE_TEST_SUITE_P(
    Values, HuggingFaceErrors,
    testing::Values(
        Broken{R"({"model_type": "gpt2", "n_layer": 0})", ErrorKind::Input, "n_layer"},
        Broken{R"({"model_type": "gpt2", "n_layer": -3})", ErrorKind::Input, "n_layer"},
        Broken{R"({"model_type": "gpt2", "n_layer": 1000000000})", ErrorKind::Input, "n_layer"},
        Broken{R"({"model_type": "gpt2", "n_layer": "12"})", ErrorKind::Input, "n_layer"},
        Broken{R"({"model_type": "gpt2", "n_layer": 1.5})", ErrorKind::Input, "n_layer"},
        Broken{R"({"model_type": "gpt2", "n_embd": 1e300})", ErrorKind::Input, "n_embd"},
        Broken{R"({"model_type": "gpt2", "n_embd": 18446744073709551615})", ErrorKind::Input,
               "n_embd"},
        Broken{R"({"model_type": "gpt2", "n_embd": 1e999})", ErrorKind::Input, "not valid JSON"},
        Broken{R"({"model_type": "gpt2", "n_embd": 2147483648, "n_head": 1,
        "n_positions": 2147483648, "vocab_size": 2147483648})",
               ErrorKind::Input, "overflow"},
        Broken{R"({"model_type": "gpt2", "n_head": 7})", ErrorKind::Input, "7 attention heads"},
        Broken{R"({"model_type": "gpt2", "n_head": 100000})", ErrorKind::Input, "n_head"},
        Broken{R"({"model_type": "gpt2", "activation_function": "gleu"})", ErrorKind::Unsupported,
               "activation_function"},
        Broken{R"({"model_type": "gpt2", "resid_pdrop": 1})", ErrorKind::Input, "resid_pdrop"},
        Broken{R"({"model_type": "gpt2", "tie_word_embeddings": "yes"})", ErrorKind::Input,
               "tie_word_embeddings"},
        Broken{R"({"model_type": "gpt2", "add_cross_attention": true})", ErrorKind::Unsupported,
               "add_cross_attention"},
        Broken{R"({"model_type": "bert", "position_embedding_type": "relative_key"})",
               ErrorKind::Unsupported, "position_embedding_type"},
        Broken{R"({"model_type": "roberta", "max_position_embeddings": 2})", ErrorKind::Input,
               "max_position_embeddings"},
        Broken{R"({"model_type": "llama", "num_key_value_heads": 5})", ErrorKind::Input,
               "5 key-value heads"},
        Broken{R"({"model_type": "llama", "head_dim": 127})", ErrorKind::Input, "127"},
        Broken{R"({"model_type": "llama", "rope_parameters": {"rope_theta": -1}})",
               ErrorKind::Input, "rope_parameters.rope_theta"},
        Broken{R"({"model_type": "mixtral", "num_experts_per_tok": 9})", ErrorKind::Input,
               "num_experts_per_tok"},
        Broken{R"({"model_type": "phi", "partial_rotary_factor": 0})", ErrorKind::Input, "rotated"},
        Broken{R"({"model_type": "t5", "feed_forward_proj": "gated-gleu"})", ErrorKind::Unsupported,
               "feed_forward_proj"},
        Broken{R"({"model_type": "t5", "relative_attention_max_distance": 16})", ErrorKind::Input,
               "relative_attention_max_distance"},
        Broken{R"({"model_type": "vit", "patch_size": 500})", ErrorKind::Input, "500"},
        Broken{R"({"model_type": "vit", "id2label": {}})", ErrorKind::Input, "id2label"},
        Broken{R"({"model_type": "vit", "image_size": [224, 224]})", ErrorKind::Input,
               "image_size"}));

INSTANTIATE_TEST_SUITE_P(
    Options, HuggingFaceErrors,
    testing::Values(
        Broken{R"({"model_type": "gpt2"})", ErrorKind::Input, "1024 positions", sized({}, 1025)},
        Broken{R"({"model_type": "gpt2"})", ErrorKind::Input, "no image size", sized({}, {}, 224)},
        Broken{R"({"model_type": "vit"})", ErrorKind::Input, "no sequence length", sized({}, 8)},
        Broken{R"({"model_type": "gpt2"})", ErrorKind::Input, "--batch", sized(0)},
        Broken{R"({"model_type": "llama"})", ErrorKind::Input, "--seq", sized({}, 1LL << 40)},
        Broken{R"({"model_type": "gpt2"})", ErrorKind::Input, "--dim", with_dimension("N", 2)}));

TEST(HuggingFace, RefusesDeepNesting) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_THROW(read(deep), Error);
  EXPECT_THROW(read(R"({"model_type": "gpt2", "x": )" + deep + "}"), Error);
  // Brackets in texts do not nest.
  const std::string text =
      R"({"model_type": "gpt2", "x": "\"[[[[)" + std::string(1000, '{') + "\"}";
  EXPECT_EQ(parameter_count(read(text).graph), 124'439'808);
}

TEST(HuggingFace, LastOfRepeatedKeysCounts) {
  const Model model = read(R"({"model_type": "gpt2", "n_layer": 3, "n_layer": 1})");
  EXPECT_EQ(count_ops(model.graph, OpKind::Attention), 1);
}

TEST(HuggingFace, BuildsTheLargestQuickly) {
  const std::clock_t start = std::clock();
  const Model model = read(R"({"model_type": "llama", "hidden_size": 16384,
      "intermediate_size": 53248, "num_attention_heads": 128, "num_hidden_layers": 126,
      "num_key_value_heads": 8, "vocab_size": 128256})");
  EXPECT_LT(std::clock() - start, 20 * CLOCKS_PER_SEC);  // milliseconds without sanitizers
}

TEST(HuggingFace, ReadsFilesAndFolders) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "windlass_huggingface_test";
  std::filesystem::create_directories(folder / "empty");
  std::ofstream(folder / "config.json") << R"({"model_type": "gpt2", "_name_or_path": "a/b"})";
  const Model model = load_huggingface(folder.string());
  EXPECT_EQ(parameter_count(model.graph), 124'439'808);
  EXPECT_EQ(model.graph.name, "a/b");
  EXPECT_EQ(load_huggingface((folder / "config.json").string()).graph.ops.size(),
            model.graph.ops.size());
  const auto message = [](const std::filesystem::path& path) -> std::string {
    try {
      load_huggingface(path.string());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Input);
      return error.message();
    }
    return "";
  };
  EXPECT_THAT(message(folder / "empty"), HasSubstr("no config.json"));
  EXPECT_THAT(message(folder / "missing.json"), HasSubstr("no such file"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace windlass
