// Reads the #include lines of windlass/ and holds them against the layer table of the design.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "windlass/base/test_places.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

// What each folder may include besides itself: a folder, or the start of a header's path.
const std::map<std::string, std::vector<std::string>> kMayUse = {
    {"base", {}},
    {"graph", {"base/"}},
    {"model", {"base/", "graph/"}},
    {"machine", {"base/"}},
    {"cost", {"base/", "graph/", "machine/"}},
    {"strategy", {"base/", "graph/", "machine/"}},
    {"task",
     {"base/", "graph/", "machine/", "cost/work", "cost/traffic", "cost/layer_profile",
      "cost/model_chain", "cost/allocation", "strategy/"}},
    {"sim", {"base/", "machine/", "cost/", "task/"}},
    {"search",
     {"base/", "graph/", "model/", "machine/", "cost/", "strategy/", "task/", "sim/", "plan/"}},
    {"plan", {"base/", "graph/", "machine/", "cost/", "strategy/", "task/", "sim/"}},
    {"data", {"base/"}},
    {"run",
     {"base/", "graph/", "model/", "machine/", "cost/", "strategy/", "task/", "sim/", "plan/",
      "data/"}},
    {"runtime",
     {"base/", "graph/", "model/", "machine/", "cost/", "strategy/", "task/", "sim/", "plan/",
      "data/", "run/"}},
    {"report",
     {"base/", "graph/", "model/", "machine/", "cost/", "strategy/", "task/", "sim/", "plan/"}},
    {"export",
     {"base/", "graph/", "model/", "machine/", "cost/", "strategy/", "task/", "sim/", "plan/"}},
    {"serve", {"base/"}},
    {"sweep",
     {"base/", "graph/", "model/", "machine/", "cost/", "strategy/", "task/", "sim/", "plan/",
      "search/", "data/", "run/", "report/"}},
    // Everything but the runtime, which is opened through run/.
    {"cli",
     {"base/", "graph/", "model/", "machine/", "cost/", "strategy/", "task/", "sim/", "plan/",
      "search/", "data/", "run/", "report/", "export/", "serve/", "sweep/", "windlass.h"}},
};

// Libraries that one folder alone may include.
const std::map<std::string, std::string> kOnlyIn = {
    {"torch/", "runtime"}, {"ATen/", "runtime"},          {"c10/", "runtime"},  {"onnx/", "model"},
    {"CLI/", "cli"},       {"google/protobuf/", "model"}, {"httplib", "serve"},
};

struct Include {
  int line = 0;
  std::string header;
};

std::vector<Include> includes_of(const std::string& text) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*[<"]([^>"]+)[>"])re");
  std::vector<Include> includes;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (std::regex_search(line, match, kInclude)) includes.push_back({number, match[1]});
  }
  return includes;
}

std::string folder_of(std::string_view path_in_windlass) {
  return std::string(path_in_windlass.substr(0, path_in_windlass.find('/')));
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "nothing" : text;
}

// The rule that `header`, included by `path` (relative to windlass/), breaks; empty if none.
std::string broken_rule(const std::string& path, const std::string& header) {
  const bool umbrella = path == "windlass.h";
  const std::string folder = folder_of(path);
  if (!umbrella && !kMayUse.contains(folder)) {
    return "folder " + folder + "/ has no row in the layer table";
  }
  for (const auto& [prefix, owner] : kOnlyIn) {
    if (header.starts_with(prefix) && folder != owner) {
      return "only " + owner + "/ includes <" + prefix + "...>";
    }
  }
  if (umbrella || !header.starts_with("windlass/")) return "";
  const std::string target = header.substr(std::string_view("windlass/").size());
  if (folder_of(target) == folder) return "";
  const std::vector<std::string>& may_use = kMayUse.at(folder);
  for (const std::string& start : may_use) {
    if (target.starts_with(start)) return "";
  }
  return folder + "/ may use " + listed(may_use);
}

// ONNX and protobuf slow down each file that includes them, so that one does, for all.
bool is_onnx(const std::string& header) {
  return header.starts_with("onnx/") || header.starts_with("google/protobuf/");
}

std::map<std::string, std::string> sources_of_windlass() {
  const fs::path root = fs::path(source_folder()) / "windlass";
  std::map<std::string, std::string> sources;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cpp") continue;
    std::ifstream stream(entry.path(), std::ios::binary);
    sources[entry.path().lexically_relative(root).generic_string()] =
        std::string(std::istreambuf_iterator<char>(stream), {});
  }
  return sources;
}

std::string place(const std::string& path, const Include& include) {
  return "windlass/" + path + ":" + std::to_string(include.line) + ": includes " + include.header +
         ": ";
}

TEST(Layers, IncludesFollowTheTable) {
  const auto sources = sources_of_windlass();
  ASSERT_FALSE(sources.empty());
  for (const auto& [path, text] : sources) {
    for (const Include& include : includes_of(text)) {
      const std::string rule = broken_rule(path, include.header);
      if (!rule.empty()) ADD_FAILURE() << place(path, include) << rule;
    }
  }
}

TEST(Layers, IncludesStartAtTheRoot) {
  const fs::path root = fs::path(source_folder()) / "windlass";
  for (const auto& [path, text] : sources_of_windlass()) {
    for (const Include& include : includes_of(text)) {
      if (fs::is_regular_file((root / path).parent_path() / include.header)) {
        ADD_FAILURE() << place(path, include) << "write the path from the root, \"windlass/...\"";
      }
    }
  }
}

TEST(Layers, OneSourceOfModelIncludesOnnx) {
  std::set<std::string> files;
  for (const auto& [path, text] : sources_of_windlass()) {
    for (const Include& include : includes_of(text)) {
      if (!is_onnx(include.header)) continue;
      files.insert(path);
      if (!path.ends_with(".cpp") || files.size() > 1) {
        ADD_FAILURE() << place(path, include) << "one .cpp of model/ includes ONNX and protobuf"
                      << (files.size() > 1 ? ", and " + *files.begin() + " does" : "");
      }
    }
  }
}

TEST(Layers, ReadsIncludeLines) {
  const auto includes =
      includes_of("// #include \"a.h\"\n#include <b>\n  # include \"c/d.h\" // e\n");
  ASSERT_EQ(includes.size(), 2u);
  EXPECT_EQ(includes[0].line, 2);
  EXPECT_EQ(includes[0].header, "b");
  EXPECT_EQ(includes[1].line, 3);
  EXPECT_EQ(includes[1].header, "c/d.h");
}

TEST(Layers, KnowsRightFromWrong) {
  EXPECT_EQ(broken_rule("graph/ops/matmul.cpp", "windlass/graph/op.h"), "");
  EXPECT_EQ(broken_rule("graph/ops/matmul.cpp", "windlass/base/units.h"), "");
  EXPECT_EQ(broken_rule("graph/graph.cpp", "vector"), "");
  EXPECT_EQ(broken_rule("graph/graph.h", "windlass/model/zoo.h"), "graph/ may use base/");
  EXPECT_EQ(broken_rule("graph/graph_test.cpp", "windlass/model/zoo.h"), "graph/ may use base/");
  EXPECT_EQ(broken_rule("base/rng.h", "windlass/graph/graph.h"), "base/ may use nothing");
  EXPECT_EQ(broken_rule("graph/graph.h", "windlass/windlass.h"), "graph/ may use base/");

  EXPECT_NE(broken_rule("sim/simulate.h", "windlass/strategy/strategy.h"), "");
  EXPECT_NE(broken_rule("report/html.cpp", "windlass/search/search.h"), "");
  EXPECT_EQ(broken_rule("task/lower.h", "windlass/cost/work.h"), "");
  EXPECT_NE(broken_rule("task/lower.h", "windlass/cost/analytic.h"), "");
  EXPECT_EQ(broken_rule("runtime/run.cpp", "windlass/sim/simulate.h"), "");
  EXPECT_NE(broken_rule("runtime/run.cpp", "windlass/search/search.h"), "");
  EXPECT_NE(broken_rule("data/dataset.h", "windlass/graph/graph.h"), "");

  EXPECT_EQ(broken_rule("cli/main.cpp", "windlass/windlass.h"), "");
  EXPECT_EQ(broken_rule("cli/main.cpp", "windlass/search/search.h"), "");
  EXPECT_EQ(broken_rule("cli/train.cpp", "windlass/run/runtime.h"), "");
  EXPECT_NE(broken_rule("cli/train.cpp", "windlass/runtime/trainer.h"), "");
  EXPECT_NE(broken_rule("run/runtime.h", "windlass/runtime/trainer.h"), "");
  EXPECT_EQ(broken_rule("windlass.h", "windlass/search/search.h"), "");

  EXPECT_EQ(broken_rule("runtime/kernels/matmul.cpp", "ATen/ops/mm.h"), "");
  EXPECT_EQ(broken_rule("cli/main.cpp", "torch/torch.h"), "only runtime/ includes <torch/...>");
  EXPECT_EQ(broken_rule("model/onnx/import.cpp", "onnx/onnx_pb.h"), "");
  EXPECT_EQ(broken_rule("graph/graph.cpp", "onnx/onnx_pb.h"), "only model/ includes <onnx/...>");
  EXPECT_EQ(broken_rule("misc/a.h", "vector"), "folder misc/ has no row in the layer table");
}

}  // namespace
}  // namespace windlass
