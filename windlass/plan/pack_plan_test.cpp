#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/machine/read_machine.h"
#include "windlass/plan/plan.h"

namespace windlass {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Plan pack_plan() {
  PackStrategy packs;
  packs.replicas = 2;
  packs.depth = 2;
  packs.forward_microbatch = 4;
  packs.backward_microbatch = 2;
  packs.forward_packs = {{0, 2}, {3, 3}};
  packs.backward_packs = {{0, 1}, {2, 3}, {4, 5}};
  packs.actions = {PackAction::Offload, PackAction::Keep, PackAction::Recompute};
  packs.stash_on_host = {1, 0, 1};
  packs.device_update = {0, 0, 1};
  packs.keep_shares = {1, 0, 0};
  packs.piece_bytes = 12345;
  packs.state_bytes = 67890;
  Plan plan;
  plan.model.source = "profile.json";
  plan.model_fingerprint = 42;
  plan.machine = load_machine("4x1080ti");
  plan.machine_fingerprint = fingerprint(plan.machine);
  plan.samples = 16;
  plan.strategy = strategy_of_packs(packs);
  plan.prediction = {.termination = "feasible",
                     .step_time = Seconds(1.5),
                     .device_peaks = {1, 2, 1, 2},
                     .host_peaks = {3}};
  plan.provenance = {.windlass = "0", .method = "harmony", .seed = 0, .cost = "measured"};
  return plan;
}

std::string message_of(const std::function<void(json&)>& change) {
  json document = json::parse(plan_to_json(pack_plan()));
  change(document);
  try {
    plan_from_json(document.dump(), "x.plan");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input);
    return error.message();
  }
  return "";
}

TEST(PackPlan, IsReadAsItWasWritten) {
  const Plan plan = pack_plan();
  const std::string text = plan_to_json(plan);
  const Plan again = plan_from_json(text, "x.plan");
  EXPECT_EQ(again.strategy.packs, plan.strategy.packs);
  EXPECT_EQ(again.prediction, plan.prediction);
  EXPECT_EQ(again.samples, 16);
  EXPECT_EQ(plan_to_json(again), text);
  const json document = json::parse(text);
  EXPECT_EQ(document["harmony"]["mode"], "pp");
  EXPECT_EQ(document["harmony"]["backward_packs"], json::parse("[[0, 1], [2, 3], [4, 5]]"));
  EXPECT_FALSE(document.contains("strategy"));
}

TEST(PackPlan, EachFaultIsNamed) {
  EXPECT_EQ(message_of([](json&) {}), "");
  EXPECT_THAT(message_of([](json& d) { d["harmony"] = 3; }), HasSubstr("harmony"));
  EXPECT_THAT(message_of([](json& d) { d["strategy"] = json::object(); }),
              HasSubstr("a plan has one of them"));
  EXPECT_THAT(message_of([](json& d) { d.erase("harmony"); }),
              HasSubstr("\"strategy\" is missing"));
  EXPECT_THAT(message_of([](json& d) { d["harmony"]["mode"] = "dp"; }),
              HasSubstr("harmony: \"mode\" is \"dp\", expected \"pp\""));
  EXPECT_THAT(message_of([](json& d) { d["harmony"]["depth"] = 0; }), HasSubstr("\"depth\""));
  EXPECT_THAT(message_of([](json& d) { d["harmony"]["replicas"] = int64_t{1} << 40; }),
              HasSubstr("\"replicas\""));
  EXPECT_THAT(message_of([](json& d) { d["harmony"].erase("forward_packs"); }),
              HasSubstr("\"forward_packs\" is missing"));
  EXPECT_THAT(message_of([](json& d) { d["harmony"]["forward_packs"] = "all"; }),
              HasSubstr("expected a list"));
  EXPECT_THAT(message_of([](json& d) {
                d["harmony"]["forward_packs"][1] = {1, 2, 3};
              }),
              HasSubstr("harmony.forward_packs[1] is [1,2,3], expected [first, last]"));
  EXPECT_THAT(message_of([](json& d) { d["harmony"]["backward_packs"][0][1] = -1; }),
              HasSubstr("harmony.backward_packs[0]: -1 is no layer"));
  EXPECT_THAT(message_of([](json& d) { d["harmony"]["backward_packs"][0][1] = 1e99; }),
              HasSubstr("is no layer"));
  EXPECT_THAT(message_of([](json& d) { d["harmony"]["backward"][1]["action"] = "keeq"; }),
              HasSubstr("did you mean \"keep\""));
  EXPECT_THAT(message_of([](json& d) { d["harmony"]["backward"][1]["first"] = 2; }),
              HasSubstr("without gaps"));
  EXPECT_THAT(message_of([](json& d) { d["harmony"]["backward"][2]["count"] = 7; }),
              HasSubstr("\"count\""));
  EXPECT_THAT(message_of([](json& d) { d["harmony"]["backward"].erase(2); }),
              HasSubstr("covers 2 packs"));
  EXPECT_THAT(message_of([](json& d) { d["harmony"]["stream"] = true; }), HasSubstr("\"stream\""));
  EXPECT_THAT(message_of([](json& d) { d["harmony"]["piece_bytes"] = 0; }),
              HasSubstr("\"piece_bytes\""));
}

}  // namespace
}  // namespace windlass
