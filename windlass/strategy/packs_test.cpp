#include "windlass/strategy/packs.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

using testing::HasSubstr;

// Six layers on two devices: forward packs on 0 and 1, the loss on 0, backward packs on 1 and 0.
PackStrategy legal() {
  PackStrategy strategy;
  strategy.depth = 2;
  strategy.forward_microbatch = strategy.backward_microbatch = 2;
  strategy.forward_packs = {{0, 1}, {2, 3}};
  strategy.backward_packs = {{0, 1}, {2, 3}, {4, 5}};
  strategy.actions.assign(3, PackAction::Recompute);
  strategy.stash_on_host.assign(3, 1);
  strategy.device_update.assign(3, 0);
  strategy.keep_shares.assign(3, 0);
  strategy.state_bytes = 1;
  return strategy;
}

std::string message_of(const std::function<void(PackStrategy&)>& change, int64_t minibatch = 8) {
  PackStrategy strategy = legal();
  change(strategy);
  try {
    check_packs(strategy, 6, minibatch, 4);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input);
    return error.message();
  }
  return "";
}

TEST(Packs, LegalOnes) {
  EXPECT_EQ(message_of([](PackStrategy&) {}), "");
  EXPECT_EQ(message_of([](PackStrategy& s) { s.replicas = 2; }), "");
  // Layers 0 and 1 run on device 0 in both passes, layers 2 and 3 on device 1.
  EXPECT_EQ(message_of([](PackStrategy& s) { s.actions[0] = PackAction::Keep; }), "");
  EXPECT_EQ(message_of([](PackStrategy& s) { s.actions[1] = PackAction::Offload; }), "");
}

TEST(Packs, EachFaultIsNamed) {
  EXPECT_THAT(message_of([](PackStrategy& s) { s.replicas = 3; }), HasSubstr("the machine has 4"));
  EXPECT_THAT(message_of([](PackStrategy& s) { s.depth = 0; }), HasSubstr("pipelines of 0"));
  EXPECT_THAT(message_of([](PackStrategy& s) { s.forward_microbatch = 0; }),
              HasSubstr("micro-batches of 0"));
  EXPECT_THAT(message_of([](PackStrategy& s) { s.backward_packs.clear(); }),
              HasSubstr("no backward packs"));
  EXPECT_THAT(message_of([](PackStrategy& s) { s.backward_packs[1].first = 3; }),
              HasSubstr("backward packs: [3, 3] does not follow"));
  EXPECT_THAT(message_of([](PackStrategy& s) { s.backward_packs[2].last = 6; }),
              HasSubstr("backward packs: [4, 6]"));
  EXPECT_THAT(message_of([](PackStrategy& s) { s.forward_packs.pop_back(); }),
              HasSubstr("forward packs end before layer 2, expected layer 4"));
  EXPECT_THAT(message_of([](PackStrategy& s) { s.actions.pop_back(); }), HasSubstr("expected all"));
  EXPECT_THAT(message_of([](PackStrategy& s) { s.device_update.push_back(0); }),
              HasSubstr("expected all"));
  EXPECT_THAT(message_of([](PackStrategy& s) { s.actions[2] = PackAction::Keep; }),
              HasSubstr("the loss pack"));
  EXPECT_THAT(message_of([](PackStrategy& s) {
                s.actions[0] = PackAction::Keep;
                s.forward_microbatch = 4;
              }),
              HasSubstr("equal micro-batches"));
  EXPECT_THAT(message_of([](PackStrategy& s) {
                s.depth = 3;
                s.actions[0] = PackAction::Keep;
              }),
              HasSubstr("\"keep\" needs one device in both passes, found 0 and"));
  EXPECT_THAT(message_of([](PackStrategy& s) { s.piece_bytes = 0; }), HasSubstr("pieces of 0"));
  EXPECT_THAT(message_of([](PackStrategy& s) {
                s.streams = false;
                s.device_update[1] = 1;
              }),
              HasSubstr("without streaming"));
  EXPECT_THAT(message_of([](PackStrategy& s) { s.replicas = 2; }, 1), HasSubstr("at least one"));
  EXPECT_THAT(message_of([](PackStrategy&) {}, int64_t{1} << 40), HasSubstr("tasks"));
}

}  // namespace
}  // namespace windlass
