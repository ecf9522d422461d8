// Runs a fuzz target once over given files, without libFuzzer: `<name>_fuzz FILE-OR-FOLDER...`.
// Each path is printed before it is tried, so that after a crash the last line names the input.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::vector<std::filesystem::path> inputs_under(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t count = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& path : inputs_under(argv[i])) {
      std::fprintf(stderr, "%s\n", path.c_str());
      std::ifstream stream(path, std::ios::binary);
      if (!stream) {
        std::fprintf(stderr, "cannot be opened\n");
        return 1;
      }
      // A vector of exactly the right size lets the address sanitizer see a read past the end.
      const std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(stream), {}};
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
      ++count;
    }
  }
  std::fprintf(stderr, "%zu inputs\n", count);
  return count > 0 ? 0 : 1;
}
