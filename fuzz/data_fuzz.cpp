// Files of training data. The first byte chooses the format, the second the sequence or the part;
// two files in one are cut where the third byte says.

#include <algorithm>
#include <span>
#include <vector>

#include "fuzz/exercise.h"

#include "windlass/data/formats.h"

namespace windlass::fuzz {
namespace {

void read_all(const Dataset& data) {
  const int64_t size = data.size();
  ensure(size > 0, "a data set without samples");
  for (int64_t sample : {int64_t{0}, size / 2, size - 1}) {
    for (size_t slot = 0; slot < data.slots().size(); ++slot) {
      const auto elements = static_cast<size_t>(slot_elements(data.slots()[slot]));
      tolerate([&] {
        if (data.slots()[slot].kind == SlotKind::Image) {
          std::vector<float> values(elements);
          data.fill(sample, slot, std::span(values));
        } else {
          std::vector<int64_t> values(elements);
          data.fill(sample, slot, std::span(values));
          for (int64_t value : values)
            ensure(value >= 0 && value < data.slots()[slot].bound, "a value out of range");
        }
      });
    }
  }
}

void read(std::span<const std::byte> file, int format, int64_t choice, size_t cut) {
  DatasetOptions options;
  options.part = static_cast<DataPart>(choice % 3);
  const auto images_of = [&](const ImageRun& run) {
    const std::vector<SlotSpec> slots = {{SlotKind::Image, {run.channels, run.height, run.width}},
                                         {SlotKind::Label, {}, 10}};
    read_all(*image_dataset({}, {run}, slots, options));
  };
  switch (format) {
    case 0:
    case 1:
    case 2: {
      const std::vector<SlotSpec> slots = {{SlotKind::Tokens, {choice}, 5000},
                                           {SlotKind::NextTokens, {choice}, 5000}};
      read_all(*token_dataset({}, parse_tokens(file, 1 << format, "x.bin"), slots, options));
      return;
    }
    case 3: images_of(parse_cifar(file, "data_batch_1.bin")); return;
    default: {
      cut = std::min(cut, file.size());
      images_of(parse_mnist(file.subspan(cut), file.first(cut), "images", "labels"));
    }
  }
}

}  // namespace
}  // namespace windlass::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace windlass;
  if (size < 3) return 0;
  const auto file = std::as_bytes(std::span(data, size)).subspan(3);
  fuzz::tolerate([&] { fuzz::read(file, data[0] % 5, data[1], data[2]); });
  return 0;
}
