// Sizes as they are written on the command line, and the text operations that names go through.

#include <vector>

#include "fuzz/exercise.h"

#include "windlass/base/text.h"
#include "windlass/base/units.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace windlass;
  const std::string_view text = fuzz::as_text(data, size);
  fuzz::tolerate([&] {
    const Bytes bytes = parse_bytes(text);
    ensure(bytes.value >= 0, "a size is negative");
    // What is printed has three digits and is a size again.
    const double again = static_cast<double>(parse_bytes(format_bytes(bytes)).value);
    const auto exact = static_cast<double>(bytes.value);
    ensure(std::abs(again - exact) <= 0.01 * exact, "a printed size is another size");
  });
  fuzz::tolerate([&] { ensure(parse_bandwidth(text).value >= 0, "a bandwidth is negative"); });
  fuzz::tolerate([&] { ensure(parse_flops_rate(text).value >= 0, "a rate is negative"); });
  fuzz::tolerate([&] { ensure(parse_seconds(text).value >= 0, "a time is negative"); });
  const std::size_t half = size / 2;
  matches_glob(text.substr(0, half), text.substr(half));
  ensure(matches_glob(text, "*"), "* does not match");
  const std::vector<std::string> known = {std::string(text.substr(0, half)), "gpt2-xl"};
  did_you_mean(text.substr(half), known);
  lower_case(text);
  split(text, ',');
  return 0;
}
