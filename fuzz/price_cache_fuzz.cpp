// Files of kernel prices: what is read is written again, byte for byte the same from then on.

#include "fuzz/exercise.h"

#include "windlass/run/price_cache.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace windlass;
  fuzz::tolerate([&] {
    const PriceFile file = price_file_from_json(fuzz::as_text(data, size), "x.json");
    ensure(file.prices.size() <= kMostPrices, "more prices than there may be");
    const std::string text = price_file_to_json(file);
    const PriceFile again = price_file_from_json(text, "x.json");
    ensure(again == file && price_file_to_json(again) == text,
           "prices are not written as they were read");
  });
  return 0;
}
