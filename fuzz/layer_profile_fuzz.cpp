// Layer profiles, and what is read between their measured sizes.

#include "fuzz/exercise.h"

#include "windlass/cost/layer_profile.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace windlass;
  const std::string_view text = fuzz::as_text(data, size);
  fuzz::tolerate([&] {
    const LayerProfile profile = layer_profile_from_json(text, "profile.json");
    ensure(is_layer_profile(text), "a profile that was read is not recognised");
    for (const PassProfile* pass : {&profile.forward, &profile.backward})
      for (std::size_t i = 0; i + 1 < pass->sizes.size(); ++i) {
        const PassCosts costs = pass->at((pass->sizes[i] + pass->sizes[i + 1]) / 2);
        for (std::size_t l = 0; l < profile.layers(); ++l)
          ensure(costs.seconds[l] >= 0 && std::isfinite(costs.seconds[l]) && costs.peak[l] >= 0,
                 "an interpolated cost is not a cost");
      }
  });
  return 0;
}
