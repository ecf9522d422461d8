// Safetensors headers: whatever is read lies in the file, each byte in one tensor; and what a model
// makes of their names.

#include <span>

#include "fuzz/exercise.h"

#include "windlass/model/huggingface/huggingface.h"
#include "windlass/model/weights.h"

namespace windlass::fuzz {
namespace {

const Graph& small_model() {
  static const Graph kGraph =
      model_from_config(R"({"model_type":"mixtral","vocab_size":4,"hidden_size":2,
        "intermediate_size":2,"num_hidden_layers":1,"num_attention_heads":1,
        "num_key_value_heads":1,"num_local_experts":2,"max_position_embeddings":4})",
                        "config.json")
          .graph;
  return kGraph;
}

void check(const Safetensors& read, std::size_t size) {
  int64_t end = -1;
  for (const StoredTensor& tensor : read.tensors) {
    const WeightLocation& location = tensor.location;
    ensure(end < 0 || location.offset == end, "tensors overlap or leave a gap");
    ensure(location.bytes == byte_size(tensor.type).value, "a tensor has another size");
    end = location.offset + location.bytes;
  }
  ensure(end < 0 || end == static_cast<int64_t>(size), "tensors do not fill the file");
}

}  // namespace
}  // namespace windlass::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace windlass;
  fuzz::tolerate([&] {
    const Safetensors read =
        parse_safetensors(std::as_bytes(std::span(data, size)), "x.safetensors");
    fuzz::check(read, size);
    std::vector<std::string> notes;
    for (const auto& [id, location] : hf_weights(fuzz::small_model(), read, notes))
      ensure(stored_elements(location) == element_count(fuzz::small_model()[id].type.shape),
             "a weight has another size");
  });
  return 0;
}
