#include "windlass/cost/layer_profile.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"

namespace windlass {
namespace {

using nlohmann::json;

json three_layers() {
  return json::parse(R"({
    "source": "written by hand", "R": 3, "u_fwd": [1, 2, 4], "u_bwd": [1, 3],
    "W": [100, 200, 0], "B": [0, 8, 0], "K": [200, 400, 0], "X_bytes_u1": [16, 32, 8],
    "upd_cpu_s": [0.1, 0.2, 0],
    "fwd_s": {"1": [0.1, 0.2, 0.01], "2": [0.15, 0.3, 0.02], "4": [0.25, 0.5, 0.04]},
    "bwd_incl_recompute_s": {"1": [0.3, 0.6, 0.03], "3": [0.7, 1.4, 0.07]},
    "fwd_mem": {"1": [150, 250, 16], "2": [200, 300, 32], "4": [300, 400, 64]},
    "bwd_mem": {"1": [350, 550, 24], "3": [451, 650, 72]}})");
}

std::string refusal(const json& document) {
  try {
    layer_profile_from_json(document.dump(), "p.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input);
    return error.message();
  }
  return "";
}

TEST(LayerProfile, IsReadAsWritten) {
  const LayerProfile profile = layer_profile_from_json(three_layers().dump(), "p.json");
  EXPECT_EQ(profile.layers(), 3u);
  EXPECT_EQ(profile.source, "written by hand");
  EXPECT_EQ(profile.weights[1], 200);
  EXPECT_EQ(profile.buffers[1], 8);
  EXPECT_EQ(profile.optimizer[0], 200);
  EXPECT_EQ(profile.input_bytes(1, 4), 128);
  EXPECT_DOUBLE_EQ(profile.host_update[1], 0.2);
  EXPECT_DOUBLE_EQ(profile.forward.at(2).seconds[1], 0.3);
  EXPECT_EQ(profile.backward.at(3).peak[2], 72);
}

// At 3: half way between 2 and 4, (0.15 + 0.25) / 2 s and (200 + 300) / 2 bytes. At 2 of the
// backward pass: half way between 350 and 451, rounded down to 400.
TEST(LayerProfile, InterpolatesInsideAndRefusesOutside) {
  const LayerProfile profile = layer_profile_from_json(three_layers().dump(), "p.json");
  EXPECT_NEAR(profile.forward.at(3).seconds[0], 0.2, 1e-12);
  EXPECT_EQ(profile.forward.at(3).peak[0], 250);
  EXPECT_EQ(profile.backward.at(2).peak[0], 400);
  EXPECT_FALSE(profile.backward.covers(4));
  EXPECT_THROW(profile.backward.at(4), Error);
  EXPECT_THROW(profile.forward.at(0), Error);
}

TEST(LayerProfile, IsRecognised) {
  EXPECT_TRUE(is_layer_profile(three_layers().dump()));
  EXPECT_FALSE(is_layer_profile(R"({"model_type": "gpt2"})"));
  EXPECT_FALSE(is_layer_profile("["));
  EXPECT_FALSE(is_layer_profile(""));
  EXPECT_FALSE(is_layer_profile("[1]"));
}

TEST(LayerProfile, RefusalsNameTheKey) {
  const auto with = [](const char* key, json value) {
    json document = three_layers();
    document[key] = std::move(value);
    return refusal(document);
  };
  for (const char* key : {"R", "u_fwd", "u_bwd", "W", "B", "K", "X_bytes_u1", "upd_cpu_s", "fwd_s",
                          "bwd_incl_recompute_s", "fwd_mem", "bwd_mem"}) {
    json document = three_layers();
    document.erase(key);
    EXPECT_NE(refusal(document).find(key), std::string::npos) << key;
    EXPECT_NE(with(key, "text").find(key), std::string::npos) << key;
    EXPECT_NE(with(key, json::array({-1, 2})).find(key), std::string::npos) << key;
  }
  EXPECT_NE(with("W", {1, -2, 3}).find("\"W\"[1] is -2"), std::string::npos);
  EXPECT_NE(with("W", {1, 2.5, 3}).find("\"W\"[1]"), std::string::npos);
  EXPECT_NE(with("upd_cpu_s", {0, 1e300, 0}).find("\"upd_cpu_s\"[1]"), std::string::npos);
  EXPECT_NE(with("u_fwd", {1, 4, 2}).find("ascend"), std::string::npos);
  EXPECT_NE(with("u_fwd", {1, 2, 5}).find("\"fwd_s\" has no entry"), std::string::npos);
  EXPECT_NE(with("u_fwd", {0, 2, 4}).find("\"u_fwd\"[0]"), std::string::npos);
  EXPECT_NE(with("R", 4).find("\"W\" has 3 entries"), std::string::npos);
  EXPECT_NE(with("R", 1).find("\"R\""), std::string::npos);
  EXPECT_NE(with("extra", 4).find("extra"), std::string::npos);
  EXPECT_NE(with("X_bytes_u1", {int64_t{1} << 44, 1, 1}).find("\"X_bytes_u1\"[0]"),
            std::string::npos);
  EXPECT_EQ(refusal(three_layers()), "");
}

}  // namespace
}  // namespace windlass
