// ONNX files, as load_model would read them.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include "fuzz/exercise.h"
#include "fuzz/onnx_mutator.h"

#include "windlass/model/onnx/onnx_import.h"

namespace windlass::fuzz {
namespace {

// A folder with external data, removed at the end.
class DataFolder {
 public:
  DataFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("windlass_onnx_fuzz_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
    std::ofstream(path_ / "weights.bin", std::ios::binary) << std::string(4096, '\1');
  }
  ~DataFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  DataFolder(const DataFolder&) = delete;
  DataFolder& operator=(const DataFolder&) = delete;

  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

void import(std::string_view bytes, const ModelOptions& options) {
  static const DataFolder folder;
  const Model model = import_onnx(bytes, "fuzz.onnx", folder.path(), options);
  exercise(model.graph);
}

}  // namespace
}  // namespace windlass::fuzz

// libFuzzer's own mutations; absent where the target only replays files.
extern "C" __attribute__((weak)) std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size,
                                                              std::size_t max_size);

extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* data, std::size_t size,
                                                 const std::uint8_t* other, std::size_t other_size,
                                                 std::uint8_t* out, std::size_t max_size,
                                                 unsigned seed) {
  using namespace windlass::fuzz;
  auto model = WireParser(as_text(data, size)).fields(Message::Model);
  const auto donor = WireParser(as_text(other, other_size)).fields(Message::Model);
  if (!model || !donor) return 0;
  OnnxMutator(seed).mutate(*model, *donor);
  const std::string result = serialize(*model);
  if (result.size() > max_size) return 0;
  std::copy(result.begin(), result.end(), out);
  return result.size();
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  const std::size_t edited =
      seed % 8 == 0 ? 0 : LLVMFuzzerCustomCrossOver(data, size, nullptr, 0, data, max_size, seed);
  return edited > 0 ? edited : LLVMFuzzerMutate(data, size, max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace windlass;
  const std::string_view bytes = fuzz::as_text(data, size);
  fuzz::tolerate([&] {
    // One input in four is taken literally, so that both ways are seen.
    ModelOptions options;
    options.as_exported = size % 4 == 0;
    try {
      fuzz::import(bytes, options);
    } catch (const Error& error) {
      // Files with open dimensions need their sizes.
      if (error.message().find(" is open; ") == std::string::npos) throw;
      options.batch = 2;
      options.sequence = 4;
      options.image = 16;
      fuzz::import(bytes, options);
    }
  });
  return 0;
}
