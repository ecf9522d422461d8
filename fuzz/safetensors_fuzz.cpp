// Safetensors headers: whatever is read lies in the file, each byte in one tensor.

#include <span>

#include "fuzz/exercise.h"

#include "windlass/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace windlass;
  fuzz::tolerate([&] {
    const Safetensors read =
        parse_safetensors(std::as_bytes(std::span(data, size)), "x.safetensors");
    int64_t end = -1;
    for (const StoredTensor& tensor : read.tensors) {
      const WeightLocation& location = tensor.location;
      ensure(end < 0 || location.offset == end, "tensors overlap or leave a gap");
      ensure(location.bytes == byte_size(tensor.type).value, "a tensor has another size");
      end = location.offset + location.bytes;
    }
    ensure(end < 0 || end == static_cast<int64_t>(size), "tensors do not fill the file");
  });
  return 0;
}
