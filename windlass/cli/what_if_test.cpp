#include "windlass/cli/what_if.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"

namespace windlass {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ChildCommand asked(const json& question) { return read_what_if(question.dump(), 30); }

std::string shown(const json& question) {
  return json::parse(asked(question).preface).at("command").get<std::string>();
}

std::string complaint(const json& question) {
  try {
    asked(question);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input);
    return error.message();
  }
  return "no complaint";
}

TEST(WhatIf, ControlsAreFlags) {
  const json question = {{"model", "gpt2-xl"},
                         {"machine", "8xa100-80g*2"},
                         {"batch", 16},
                         {"seq", 512},
                         {"memory", "70%"},
                         {"dtype", "bf16"},
                         {"optimizer", "adam"},
                         {"runner", "megatron"},
                         {"off", {"recompute", "tp"}},
                         {"compress", true},
                         {"seconds", 2.5}};
  EXPECT_THAT(asked(question).arguments,
              ElementsAre("answer", "gpt2-xl", "--batch=16", "--seq=512", "--on=8xa100-80g*2",
                          "--memory=70%", "--dtype=bf16", "--runner=megatron",
                          "--fix=recompute=off,tp=1", "--allow=compress", "--time-limit=2.5"));
  EXPECT_EQ(shown(question),
            "windlass plan gpt2-xl --batch 16 --seq 512 --on '8xa100-80g*2' --memory '70%' --dtype "
            "bf16 --runner megatron --fix recompute=off,tp=1 --allow compress --time-limit 2.5");
}

TEST(WhatIf, FilesAreCarriedUnderOtherNames) {
  const json question = {{"model_file", {{"name", "my model's.json"}, {"text", "{}"}}},
                         {"machine_file", {{"name", "../box.json"}, {"text", " {}"}}}};
  const ChildCommand command = asked(question);
  ASSERT_EQ(command.files.size(), 2U);
  EXPECT_EQ(command.files[0].first, "config.json");
  EXPECT_EQ(command.files[1], std::make_pair(std::string("machine.json"), std::string(" {}")));
  EXPECT_THAT(command.arguments,
              ElementsAre("answer", "config.json", "--on=machine.json", "--time-limit=5"));
  EXPECT_THAT(shown(question), HasSubstr("'my model'\\''s.json' --on ../box.json"));
}

TEST(WhatIf, RefusesWhatIsNoName) {
  for (const char* name :
       {"../x", "/etc/passwd", "-o", "--help", ".hidden", "a b", "a\nb", "$(x)", "~"}) {
    EXPECT_THAT(complaint({{"model", name}, {"machine", "4x3090"}}), HasSubstr("model")) << name;
    EXPECT_THAT(complaint({{"model", "gpt2"}, {"machine", name}}), HasSubstr("machine")) << name;
    EXPECT_THAT(complaint({{"model", "gpt2"}, {"machine", "4x3090"}, {"runner", name}}),
                HasSubstr("runner"))
        << name;
  }
  EXPECT_THAT(complaint({{"model", "gpt2"}, {"machine", "local"}}), HasSubstr("plan --on local"));
  const json fine = {{"model", "gpt2"}, {"machine", "4x3090"}};
  for (const auto& [key, value] : std::vector<std::pair<std::string, json>>{
           {"batch", 0},
           {"batch", 1.5},
           {"batch", "8"},
           {"batch", 1e30},
           {"seq", -1},
           {"seconds", 0},
           {"seconds", 1e9},
           {"off", {"nothing"}},
           {"off", "tp"},
           {"model", 3},
           {"runner", "runner.json"},
           {"model_file", "x"},
           {"model_file", {{"name", "a"}}},
           {"model_file", {{"name", "a"}, {"text", "[]"}}},
           {"model_file", {{"name", "a"}, {"text", "{" + std::string(2 << 20, ' ')}}}}) {
    json question = fine;
    question[key] = value;
    EXPECT_NE(complaint(question), "no complaint") << key << " " << value.dump().substr(0, 60);
  }
}

TEST(WhatIf, AnyBytesEndInACommandOrAWord) {
  std::mt19937 random(7);
  const std::string fine = json{{"model", "gpt2"}, {"machine", "4x3090"}, {"off", {"tp"}}}.dump();
  for (int i = 0; i < 20'000; ++i) {
    std::string text = fine;
    for (unsigned n = random() % 4 + 1; n > 0; --n) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0)
        text[at] = static_cast<char>(random());
      else
        text.insert(at, 1, "[]{}\",:\\0-"[random() % 10]);
    }
    try {
      for (const std::string& argument : read_what_if(text, 30).arguments)
        EXPECT_EQ(argument.find('/'), std::string::npos) << text;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::Input) << text;
    }
  }
  EXPECT_THROW(read_what_if(std::string(1 << 20, '['), 30), Error);
  EXPECT_THROW(read_what_if("[" + std::string(1 << 20, ',') + "]", 30), Error);
}

}  // namespace
}  // namespace windlass
