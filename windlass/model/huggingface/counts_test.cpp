// Parameter counts are those of the published checkpoints, by numel over the trainable parameters
// of the class that `architectures` names, tied weights once. Configs are shortened to the keys
// that matter.
#include <ostream>

#include <gtest/gtest.h>

#include "windlass/model/huggingface/huggingface.h"

namespace windlass {
namespace {

struct Known {
  const char* name;
  int64_t parameters;
  const char* config;
};

void PrintTo(const Known& known, std::ostream* out) { *out << known.name; }

class HuggingFaceCounts : public testing::TestWithParam<Known> {};

TEST_P(HuggingFaceCounts, AreExact) {
  const Model model = model_from_config(GetParam().config, "config.json");
  EXPECT_EQ(parameter_count(model.graph), GetParam().parameters);
  EXPECT_EQ(model.source, "huggingface");
  EXPECT_TRUE(model.graph.loss.valid());
}

INSTANTIATE_TEST_SUITE_P(
    Gpt2, HuggingFaceCounts,
    testing::Values(
        Known{"gpt2", 124'439'808, R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
        "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257})"},
        Known{"gpt2 by defaults", 124'439'808, R"({"model_type": "gpt2"})"},
        Known{"gpt2-medium", 354'823'168, R"({"model_type": "gpt2", "n_embd": 1024, "n_head": 16,
        "n_layer": 24, "n_inner": null})"},
        Known{"gpt2-large", 774'030'080, R"({"model_type": "gpt2", "n_embd": 1280, "n_head": 20,
        "n_layer": 36})"},
        Known{"gpt2-xl", 1'557'611'200, R"({"model_type": "gpt2", "n_embd": 1600, "n_head": 25,
        "n_layer": 48})"},
        // 124,439,808 + 2 * 768
        Known{"gpt2 classifier", 124'441'344, R"({"model_type": "gpt2",
        "architectures": ["GPT2ForSequenceClassification"]})"},
        Known{"gpt2 base", 124'439'808,
              R"({"model_type": "gpt2", "architectures": ["GPT2Model"]})"}));

INSTANTIATE_TEST_SUITE_P(
    Encoders, HuggingFaceCounts,
    testing::Values(
        Known{"bert-base-uncased base", 109'482'240, R"({"model_type": "bert",
        "architectures": ["BertModel"]})"},
        Known{"bert-base-uncased masked", 109'514'298, R"({"model_type": "bert",
        "architectures": ["BertForMaskedLM"], "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522})"},
        Known{"bert-base-uncased pretraining", 110'106'428, R"({"model_type": "bert",
        "architectures": ["BertForPreTraining"]})"},
        // 109,482,240 + 2 * 768 + 2
        Known{"bert-base-uncased classifier", 109'483'778, R"({"model_type": "bert",
        "architectures": ["BertForSequenceClassification"]})"},
        // 109,482,240 - 590,592 of the pooler + 2 * 768 + 2
        Known{"bert-base-uncased answers", 108'893'186, R"({"model_type": "bert",
        "architectures": ["BertForQuestionAnswering"]})"},
        // the same with 9 classes: 108,891,648 + 9 * 769
        Known{"bert-base-uncased tokens", 108'898'569, R"({"model_type": "bert",
        "architectures": ["BertForTokenClassification"], "num_labels": 9})"},
        Known{"bert-large-uncased base", 335'141'888, R"({"model_type": "bert",
        "architectures": ["BertModel"], "hidden_size": 1024, "num_hidden_layers": 24,
        "num_attention_heads": 16, "intermediate_size": 4096})"},
        Known{"roberta-base masked", 124'697'433, R"({"model_type": "roberta",
        "architectures": ["RobertaForMaskedLM"], "max_position_embeddings": 514,
        "type_vocab_size": 1, "vocab_size": 50265, "layer_norm_eps": 1e-05, "pad_token_id": 1})"},
        Known{"roberta-base base", 124'645'632, R"({"model_type": "roberta",
        "architectures": ["RobertaModel"], "max_position_embeddings": 514, "type_vocab_size": 1})"},
        Known{"roberta-base classifier", 124'647'170, R"({"model_type": "roberta",
        "architectures": ["RobertaForSequenceClassification"], "max_position_embeddings": 514,
        "type_vocab_size": 1})"},
        Known{"distilbert-base-uncased masked", 66'985'530, R"({"model_type": "distilbert",
        "architectures": ["DistilBertForMaskedLM"], "dim": 768, "hidden_dim": 3072, "n_heads": 12,
        "n_layers": 6, "sinusoidal_pos_embds": false, "tie_weights_": true, "vocab_size": 30522})"},
        Known{"distilbert-base-uncased base", 66'362'880, R"({"model_type": "distilbert",
        "architectures": ["DistilBertModel"]})"},
        Known{"distilbert-base-uncased classifier", 66'955'010, R"({"model_type": "distilbert",
        "architectures": ["DistilBertForSequenceClassification"]})"},
        // 66,362,880 less the fixed table of 512 * 768
        Known{"distilbert with sinusoids", 65'969'664, R"({"model_type": "distilbert",
        "architectures": ["DistilBertModel"], "sinusoidal_pos_embds": true})"}));

INSTANTIATE_TEST_SUITE_P(
    Opt, HuggingFaceCounts,
    testing::Values(Known{"opt-125m", 125'239'296,
                          R"({"model_type": "opt", "architectures": ["OPTForCausalLM"],
        "word_embed_proj_dim": 768})"},
                    Known{"opt-350m", 331'196'416,
                          R"({"model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096,
        "num_hidden_layers": 24, "num_attention_heads": 16, "word_embed_proj_dim": 512,
        "do_layer_norm_before": false})"},
                    Known{"opt-1.3b", 1'315'758'080,
                          R"({"model_type": "opt", "hidden_size": 2048, "ffn_dim": 8192,
        "num_hidden_layers": 24, "num_attention_heads": 32, "word_embed_proj_dim": 2048})"},
                    Known{"opt-6.7b", 6'658'473'984, R"({"model_type": "opt", "hidden_size": 4096,
        "ffn_dim": 16384, "num_hidden_layers": 32, "num_attention_heads": 32})"}));

INSTANTIATE_TEST_SUITE_P(
    NeoxAndPhi, HuggingFaceCounts,
    testing::Values(
        Known{"pythia-70m", 70'426'624, R"({"model_type": "gpt_neox", "hidden_size": 512,
        "intermediate_size": 2048, "num_attention_heads": 8, "num_hidden_layers": 6,
        "vocab_size": 50304})"},
        Known{"pythia-160m", 162'322'944, R"({"model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"], "hidden_size": 768, "intermediate_size": 3072,
        "num_attention_heads": 12, "num_hidden_layers": 12, "vocab_size": 50304,
        "tie_word_embeddings": false})"},
        Known{"gpt-neox-20b", 20'554'567'680, R"({"model_type": "gpt_neox", "vocab_size": 50432,
        "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64,
        "num_hidden_layers": 44, "rotary_pct": 0.25})"},
        Known{"phi-1_5", 1'418'270'720,
              R"({"model_type": "phi", "architectures": ["PhiForCausalLM"],
        "vocab_size": 51200})"},
        Known{"phi-2", 2'779'683'840, R"({"model_type": "phi", "hidden_size": 2560,
        "intermediate_size": 10240, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "partial_rotary_factor": 0.4, "vocab_size": 51200})"}));

INSTANTIATE_TEST_SUITE_P(
    Falcon, HuggingFaceCounts,
    testing::Values(
        Known{"falcon-7b", 6'921'720'704, R"({"model_type": "falcon",
        "architectures": ["FalconForCausalLM"], "hidden_size": 4544, "num_attention_heads": 71,
        "num_hidden_layers": 32, "multi_query": true, "parallel_attn": true, "bias": false,
        "alibi": false, "new_decoder_architecture": false, "vocab_size": 65024})"},
        Known{"falcon-40b", 41'303'293'952, R"({"model_type": "falcon", "hidden_size": 8192,
        "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8,
        "new_decoder_architecture": true, "vocab_size": 65024})"},
        // 2 * 65024 * 14848 + 80 * (14848 * (232 + 2 * 8) * 64 + 9 * 14848^2 + 4 * 14848) + 2 *
        // 14848
        Known{"falcon-180b", 179'522'565'120, R"({"model_type": "falcon", "hidden_size": 14848,
        "num_attention_heads": 232, "num_hidden_layers": 80, "num_kv_heads": 8,
        "new_decoder_architecture": true, "vocab_size": 65024, "tie_word_embeddings": false})"},
        Known{"falcon-rw-1b", 1'311'625'216, R"({"model_type": "falcon", "hidden_size": 2048,
        "num_attention_heads": 32, "num_hidden_layers": 24, "multi_query": false, "alibi": true,
        "parallel_attn": false, "bias": true, "vocab_size": 50304})"}));

INSTANTIATE_TEST_SUITE_P(
    Llama, HuggingFaceCounts,
    testing::Values(
        Known{"Llama-2-7b", 6'738'415'616, R"({"model_type": "llama",
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "vocab_size": 32000, "max_position_embeddings": 4096, "tie_word_embeddings": false})"},
        Known{"llama-7b by defaults", 6'738'415'616, R"({"model_type": "llama"})"},
        Known{"llama-65b", 65'285'660'672, R"({"model_type": "llama", "hidden_size": 8192,
        "intermediate_size": 22016, "num_attention_heads": 64, "num_hidden_layers": 80})"},
        Known{"Llama-2-13b", 13'015'864'320, R"({"model_type": "llama", "hidden_size": 5120,
        "intermediate_size": 13824, "num_attention_heads": 40, "num_hidden_layers": 40})"},
        Known{"Llama-2-70b", 68'976'648'192, R"({"model_type": "llama", "hidden_size": 8192,
        "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80,
        "num_key_value_heads": 8})"},
        Known{"Llama-3-8B", 8'030'261'248, R"({"model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0})"},
        Known{"Llama-3-70B", 70'553'706'496, R"({"model_type": "llama", "hidden_size": 8192,
        "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80,
        "num_key_value_heads": 8, "vocab_size": 128256})"},
        Known{"Llama-3.1-405B", 405'853'388'800, R"({"model_type": "llama", "hidden_size": 16384,
        "intermediate_size": 53248, "num_attention_heads": 128, "num_hidden_layers": 126,
        "num_key_value_heads": 8, "vocab_size": 128256})"},
        Known{"Llama-3.2-1B", 1'235'814'400, R"({"model_type": "llama", "hidden_size": 2048,
        "intermediate_size": 8192, "num_attention_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
        "tie_word_embeddings": true})"},
        // 6,738,415,616 + 32 * (4 * 4096 + 2 * 11008 + 4096)
        Known{"llama with biases", 6'739'775'488, R"({"model_type": "llama", "attention_bias": true,
        "mlp_bias": true})"}));

INSTANTIATE_TEST_SUITE_P(
    LikeLlama, HuggingFaceCounts,
    testing::Values(Known{"Mistral-7B", 7'241'732'096, R"({"model_type": "mistral",
        "architectures": ["MistralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "sliding_window": 4096, "vocab_size": 32000})"},
                    Known{"Mixtral-8x7B", 46'702'792'704, R"({"model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "num_experts_per_tok": 2, "num_local_experts": 8, "vocab_size": 32000})"},
                    Known{"Qwen2-0.5B", 494'032'768, R"({"model_type": "qwen2", "hidden_size": 896,
        "intermediate_size": 4864, "num_attention_heads": 14, "num_hidden_layers": 24,
        "num_key_value_heads": 2, "tie_word_embeddings": true, "vocab_size": 151936})"},
                    Known{"Qwen2-1.5B", 1'543'714'304,
                          R"({"model_type": "qwen2", "hidden_size": 1536,
        "intermediate_size": 8960, "num_attention_heads": 12, "num_hidden_layers": 28,
        "num_key_value_heads": 2, "tie_word_embeddings": true, "vocab_size": 151936})"},
                    Known{"Qwen2-7B", 7'615'616'512, R"({"model_type": "qwen2", "hidden_size": 3584,
        "intermediate_size": 18944, "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "vocab_size": 152064})"},
                    Known{"gemma-2b", 2'506'172'416, R"({"model_type": "gemma",
        "architectures": ["GemmaForCausalLM"], "hidden_size": 2048, "intermediate_size": 16384,
        "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
        "head_dim": 256, "hidden_act": "gelu", "vocab_size": 256000})"},
                    Known{"gemma-7b", 8'537'680'896, R"({"model_type": "gemma", "hidden_size": 3072,
        "intermediate_size": 24576, "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256000})"}));

INSTANTIATE_TEST_SUITE_P(
    T5, HuggingFaceCounts,
    testing::Values(
        Known{"t5-small", 60'506'624, R"({"model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"]})"},
        Known{"t5-small encoder", 35'330'816, R"({"model_type": "t5",
        "architectures": ["T5EncoderModel"]})"},
        Known{"t5-base", 222'903'552,
              R"({"model_type": "t5", "d_model": 768, "d_ff": 3072, "d_kv": 64,
        "num_heads": 12, "num_layers": 12})"},
        Known{"flan-t5-base", 247'577'856, R"({"model_type": "t5", "d_model": 768, "d_ff": 2048,
        "d_kv": 64, "num_heads": 12, "num_layers": 12, "num_decoder_layers": 12,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false})"},
        Known{"t5-large", 737'668'096, R"({"model_type": "t5", "d_model": 1024, "d_ff": 4096,
        "d_kv": 64, "num_heads": 16, "num_layers": 24})"}));

INSTANTIATE_TEST_SUITE_P(
    Vit, HuggingFaceCounts,
    testing::Values(Known{"vit-base-patch16-224", 86'567'656, R"({"model_type": "vit",
        "architectures": ["ViTForImageClassification"], "num_labels": 1000})"},
                    Known{"vit-base-patch16-224 base", 86'389'248, R"({"model_type": "vit",
        "architectures": ["ViTModel"]})"}));

}  // namespace
}  // namespace windlass
