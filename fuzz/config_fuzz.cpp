// Hugging Face configs.

#include "fuzz/exercise.h"

#include "windlass/model/huggingface/huggingface.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace windlass;
  fuzz::tolerate(
      [&] { fuzz::exercise(model_from_config(fuzz::as_text(data, size), "config.json").graph); });
  return 0;
}
