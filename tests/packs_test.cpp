// Plans of packs of layers from the command line to the file and back.

#include <filesystem>
#include <fstream>
#include <functional>
#include <unistd.h>

#include "tests/run_program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace windlass {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

// Eight layers of 200 MB of weights and a loss, measured at 1 and 4 samples.
std::string profile_text() {
  json profile = {{"source", "made up"}, {"R", 9}, {"u_fwd", {1, 4}}, {"u_bwd", {1, 4}}};
  const auto each = [](auto layer, auto loss) {
    json list = json::array();
    for (int l = 0; l < 8; ++l) list.push_back(layer);
    list.push_back(loss);
    return list;
  };
  profile["W"] = each(200'000'000, 0);
  profile["B"] = each(0, 0);
  profile["K"] = each(400'000'000, 0);
  profile["X_bytes_u1"] = each(4'000'000, 4'000'000);
  profile["upd_cpu_s"] = each(0.02, 0.0);
  for (int u : {1, 4}) {
    const std::string size = std::to_string(u);
    profile["fwd_s"][size] = each(0.02 * u, 0.001);
    profile["bwd_incl_recompute_s"][size] = each(0.06 * u, 0.003);
    profile["fwd_mem"][size] = each(200'000'000 + 12'000'000 * u, 12'000'000 * u);
    profile["bwd_mem"][size] = each(400'000'000 + 40'000'000 * u, 20'000'000 * u);
  }
  return profile.dump();
}

class PackPlans : public testing::Test {
 protected:
  PackPlans() {
    std::string pattern = (fs::temp_directory_path() / "windlass-packs-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    std::ofstream(folder_ / "layers.json") << profile_text();
  }
  ~PackPlans() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  ProgramResult plan(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {
        "plan", path("layers.json"), "--on",    "4x1080ti", "--batch",
        "16",   "--search",          "harmony", "--memory", "1GB"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_windlass(arguments);
  }
  json read(const std::string& name) const {
    std::ifstream file(path(name));
    return json::parse(file);
  }
  // Changes the plan and returns what `verb` says of it.
  ProgramResult changed(const std::string& verb, const std::function<void(json&)>& change) const {
    json document = read("plan.json");
    change(document);
    std::ofstream(path("changed.json")) << document.dump();
    return run_windlass({verb, path("changed.json")});
  }
  fs::path folder_;
};

TEST_F(PackPlans, AreWrittenCheckedAndSimulated) {
  const ProgramResult planned = plan({"-o", path("plan.json"), "--json"});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  const json shown = json::parse(planned.out), file = read("plan.json");
  for (const char* key :
       {"mode", "forward_packs", "backward_packs", "forward_microbatch", "backward_microbatch"})
    EXPECT_EQ(shown["harmony"][key], file["harmony"][key]) << key;
  EXPECT_EQ(shown["step_time_s"], file["prediction"]["step_time_s"]);

  const ProgramResult again = plan({"-o", path("again.json")});
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_EQ(read("again.json"), file);

  const ProgramResult checked = run_windlass({"check", path("plan.json"), "--json"});
  EXPECT_EQ(checked.exit_code, 0) << checked.out;
  EXPECT_EQ(json::parse(checked.out)["valid"], true);

  const ProgramResult simulated = run_windlass({"simulate", path("plan.json"), "--json"});
  ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
  EXPECT_EQ(json::parse(simulated.out)["step_time_s"], shown["step_time_s"]);
  EXPECT_EQ(json::parse(simulated.out)["devices"], shown["devices"]);
  EXPECT_THAT(run_windlass({"simulate", path("plan.json")}).out, HasSubstr("backward"));
}

TEST_F(PackPlans, OfHarmonysRuntimeAndOfModels) {
  ASSERT_EQ(plan({"-o", path("plan.json"), "--cost", "harmony", "--mode", "pp"}).exit_code, 0);
  EXPECT_EQ(run_windlass({"check", path("plan.json")}).exit_code, 0);
  const ProgramResult model =
      run_windlass({"plan", "gpt2:layers=4,hidden=256", "--on", "4x1080ti", "--batch", "8",
                    "--memory", "1GB", "--search", "harmony", "-o", path("model.json")});
  ASSERT_EQ(model.exit_code, 0) << model.err;
  const ProgramResult checked = run_windlass({"check", path("model.json")});
  EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
}

// A plan for a network is one like any other: a step of ops that is simulated, traced, listed and
// saved again. Beside it stands what steps in a row take by layers.
TEST_F(PackPlans, OfNetworksAreSimulatedOpByOp) {
  const ProgramResult planned =
      run_windlass({"plan", "gpt2:layers=4,hidden=256", "--on", "4x1080ti", "--batch", "8",
                    "--memory", "1GB", "--search", "harmony", "-o", path("plan.json"), "--json"});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  const json shown = json::parse(planned.out);
  const json file = read("plan.json");
  EXPECT_EQ(shown["step_time_s"], file["prediction"]["step_time_s"]);
  EXPECT_EQ(shown["harmony"]["backward_packs"], file["harmony"]["backward_packs"]);
  EXPECT_GT(shown["step_overhead_s"], 0);
  EXPECT_GT(shown["long_run"]["step_time_s"], 0);
  EXPECT_FALSE(shown["long_run"]["baselines"].empty());
  EXPECT_LE(shown["lower_bound_s"], shown["step_time_s"]);
  const ProgramResult simulated = run_windlass({"simulate", path("plan.json"), "--json", "--trace",
                                                path("trace.json"), "--save", path("again.json")});
  ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
  EXPECT_EQ(json::parse(simulated.out)["step_time_s"], shown["step_time_s"]);
  EXPECT_EQ(json::parse(simulated.out)["devices"], shown["devices"]);
  EXPECT_EQ(read("again.json")["harmony"], file["harmony"]);
  EXPECT_TRUE(fs::exists(path("trace.json")));
  const json tasks =
      json::parse(run_windlass({"simulate", path("plan.json"), "--tasks", "--json"}).out);
  EXPECT_EQ(tasks["tasks"].size(), shown["tasks"].get<size_t>());
  const ProgramResult explained = run_windlass({"explain", path("plan.json"), "--json"});
  ASSERT_EQ(explained.exit_code, 0) << explained.err;
  EXPECT_EQ(json::parse(explained.out)["step_time_s"], shown["long_run"]["step_time_s"]);
  const auto refused = changed("check", [](json& d) { d["harmony"]["replicas"] = 1000; });
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("the machine has 4"));
  EXPECT_EQ(changed("check", [](json& d) { d["prediction"]["step_time_s"] = 1; }).exit_code, 1);
}

// Harmony's runtime on even packs, by name. Networks whose samples mix are refused with the reason.
TEST_F(PackPlans, ByName) {
  for (const std::string mode : {"pp", "dp"}) {
    const ProgramResult named = run_windlass(
        {"simulate", "gpt2:layers=4,hidden=256", "--on", "4x1080ti", "--batch", "8", "--strategy",
         "harmony:mode=" + mode + ",packs=3,micro=1", "--json", "--save", path("plan.json")});
    ASSERT_EQ(named.exit_code, 0) << named.err;
    EXPECT_EQ(json::parse(named.out)["harmony"]["mode"], mode);
    EXPECT_EQ(json::parse(named.out)["harmony"]["backward_packs"].size(), 3u);
    EXPECT_EQ(run_windlass({"check", path("plan.json")}).exit_code, 0);
  }
  const ProgramResult mixed = run_windlass({"simulate", "resnet-18", "--on", "4x1080ti", "--batch",
                                            "8", "--strategy", "harmony:mode=pp"});
  EXPECT_EQ(mixed.exit_code, 1);
  EXPECT_THAT(mixed.err, HasSubstr("samples"));
  const ProgramResult old = changed("check", [](json& d) {
    d.erase("harmony");
    d["strategy"] = {{"micro_batches", 1}, {"schedule", "packs"}};
  });
  EXPECT_EQ(old.exit_code, 1);
  EXPECT_THAT(old.err, HasSubstr("--search harmony"));
}

using PackPlansSlow = PackPlans;

// Weights and optimizer state of 77 million parameters, 1.2 GB, do not fit into four devices of
// 200 MB. With room for everything there is no reason for packs.
TEST_F(PackPlansSlow, AreFoundWhereWeightsDoNotFit) {
  const auto automatic = [&](const std::string& memory) {
    const ProgramResult result = run_windlass(
        {"plan", "gpt2:layers=6,hidden=1024,vocab=1000", "--on", "4x1080ti", "--batch", "8",
         "--memory", memory, "--effort", "0.01", "--json", "-o", path("plan.json")});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(run_windlass({"check", path("plan.json")}).exit_code, 0);
    return json::parse(result.out);
  };
  const json tight = automatic("200MB");
  ASSERT_TRUE(tight.contains("harmony"));
  EXPECT_LE(tight["devices"][0]["peak_bytes"], 200'000'000);
  EXPECT_FALSE(automatic("8GB").contains("harmony"));
}

// What explain says of the plan adds up, and what it says of another is what simulate says of it.
TEST_F(PackPlans, AreExplained) {
  ASSERT_EQ(plan({"-o", path("plan.json")}).exit_code, 0);
  const ProgramResult result = run_windlass({"explain", path("plan.json"), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json found = json::parse(result.out);
  const json promised = read("plan.json")["prediction"];
  EXPECT_EQ(found["step_time_s"], promised["step_time_s"]);
  for (const json& device : found["time"]) {
    double sum = 0;
    for (const char* part : {"forward_s", "recompute_s", "backward_s", "update_s", "idle_s"})
      sum += device[part].get<double>();
    EXPECT_NEAR(sum, found["step_time_s"].get<double>(), 0.02 * sum);
  }
  int64_t bytes = 0;
  for (const json& part : found["memory"]["parts"]) bytes += part["bytes"].get<int64_t>();
  EXPECT_GE(bytes, found["peak_bytes"].get<int64_t>());
  bool compared = false;
  for (const json& other : found["alternatives"]) {
    EXPECT_EQ(other["step_time_difference_s"].get<double>(),
              other["step_time_s"].get<double>() - found["step_time_s"].get<double>());
    if (other["decision"] != "inputs of packs" || other["choice"] != "all on the host") continue;
    compared = true;
    const ProgramResult simulated = changed("simulate", [](json& document) {
      for (json& packs : document["harmony"]["backward"]) packs["input_on_host"] = true;
    });
    EXPECT_THAT(simulated.out, HasSubstr("input on the host"));
    const json again = json::parse(run_windlass({"simulate", path("changed.json"), "--json"}).out);
    EXPECT_EQ(again["step_time_s"], other["step_time_s"]);
  }
  EXPECT_TRUE(compared) << result.out;
  EXPECT_FALSE(found["pack_alternatives"].empty());
  EXPECT_THAT(run_windlass({"explain", path("plan.json")}).out, HasSubstr("the longest waits"));
  EXPECT_EQ(run_windlass({"explain", path("plan.json"), "--op", "x"}).exit_code, 1);
}

TEST_F(PackPlans, AreNotTrainedYet) {
  ASSERT_EQ(plan({"-o", path("plan.json")}).exit_code, 0);
  const ProgramResult trained =
      run_windlass({"train", path("plan.json"), "--data", path("plan.json")});
  EXPECT_EQ(trained.exit_code, 1);
  EXPECT_THAT(trained.err, HasSubstr("simulated only"));
}

TEST_F(PackPlans, ChangedOnesAreFoundOut) {
  ASSERT_EQ(plan({"-o", path("plan.json")}).exit_code, 0);
  EXPECT_EQ(changed("check", [](json&) {}).exit_code, 0);
  const auto expect = [&](const std::string& part, const std::function<void(json&)>& change) {
    const ProgramResult result = changed("check", change);
    EXPECT_EQ(result.exit_code, 1) << part;
    EXPECT_THAT(result.out + result.err, HasSubstr(part));
  };
  expect("promises a step", [](json& d) { d["prediction"]["step_time_s"] = 1e-3; });
  expect("promises a peak", [](json& d) { d["prediction"]["hosts"][0]["peak_bytes"] = 1; });
  expect("promises a peak", [](json& d) { d["prediction"]["devices"][0]["peak_bytes"] = 1; });
  expect("other layers", [](json& d) { d["model"]["fingerprint"] = "0123456789abcdef"; });
  expect("does not follow", [](json& d) { d["harmony"]["backward_packs"][0][0] = 1; });
  expect("was not measured", [](json& d) {
    d["samples"] = 64;
    d["harmony"]["forward_microbatch"] = d["harmony"]["backward_microbatch"] = 8;
  });
  expect("too small for a pack", [](json& d) { d["harmony"]["state_bytes"] = 1; });
  expect("the machine has 4", [](json& d) { d["harmony"]["replicas"] = 1000; });
  expect("tasks", [](json& d) { d["samples"] = int64_t{1} << 39; });
  // One pack of everything does not fit.
  const auto all = [](json& d) {
    d["harmony"]["forward_packs"] = json::array();
    d["harmony"]["backward_packs"] = {{0, 8}};
    d["harmony"]["backward"] = {{{"first", 0}, {"count", 1}, {"action", "recompute"}}};
    d["harmony"]["state_bytes"] = int64_t{1} << 40;
  };
  expect("did not come to its end", all);
  const ProgramResult simulated = changed("simulate", all);
  EXPECT_EQ(simulated.exit_code, 2);
  EXPECT_THAT(simulated.out, HasSubstr("least limit"));
}

}  // namespace
}  // namespace windlass
