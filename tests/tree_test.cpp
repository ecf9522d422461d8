// Keeps the source tree as it is described: header names, lengths of files, and the files that
// comments and documents name.

#include <algorithm>
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

const fs::path kRoot = source_folder();
// Parts of the checkout that are the project's own.
const std::vector<std::string> kFolders = {"windlass", "tests",      "benchmarks", "fuzz",
                                           "docs",     "cmake",      "scripts",    "machines",
                                           "examples", "validation", "runners"};

std::string text_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Files from the root, with forward slashes, ascending.
std::set<std::string> files_of_tree() {
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(kRoot))
    if (entry.is_regular_file()) files.insert(entry.path().filename().string());
  for (const std::string& folder : kFolders)
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder))
      if (entry.is_regular_file())
        files.insert(entry.path().lexically_relative(kRoot).generic_string());
  return files;
}

bool is_source(const std::string& path) { return path.ends_with(".h") || path.ends_with(".cpp"); }

TEST(Tree, HeaderNamesAreUnique) {
  std::map<std::string, std::string> known;
  for (const std::string& path : files_of_tree()) {
    if (!path.ends_with(".h")) continue;
    const auto [other, fresh] = known.emplace(fs::path(path).filename().string(), path);
    EXPECT_TRUE(fresh) << path << " and " << other->second << " have the same name";
  }
}

// Two types of one name in one namespace are one type to the linker: it takes either's functions
// for both, and no compiler sees it.
TEST(Tree, TypesOfANamespaceHaveNamesOfTheirOwn) {
  static const std::regex kNamespace(R"re(^namespace ([\w:]+) \{.*)re");
  static const std::regex kType(
      R"re(^(?:struct|class|enum class) (\w+)(?: final)?(?: : [^;]*)? \{.*)re");
  std::map<std::string, std::string> known;
  for (const std::string& path : files_of_tree()) {
    if (!is_source(path) || !path.starts_with("windlass/")) continue;
    std::istringstream lines(text_of(kRoot / path));
    std::string space;
    bool unnamed = false;
    for (std::string line; std::getline(lines, line);) {
      std::smatch found;
      if (std::regex_match(line, found, kNamespace)) space = found[1];
      if (line == "namespace {") unnamed = true;
      if (line == "}  // namespace") unnamed = false;
      if (unnamed || !std::regex_match(line, found, kType)) continue;
      const auto [other, fresh] = known.emplace(space + "::" + found[1].str(), path);
      EXPECT_TRUE(fresh) << path << " and " << other->second << ": " << other->first;
    }
  }
  EXPECT_TRUE(known.contains("windlass::TaskGraph"));
}

// Folders in which no file but a test is longer than this.
constexpr int64_t kMostLines = 400;
const std::vector<std::string> kShortFiles = {
    "windlass/search/", "windlass/task/", "windlass/plan/", "windlass/cli/", "windlass/runtime/"};

TEST(Tree, FilesAreShort) {
  for (const std::string& path : files_of_tree()) {
    if (!is_source(path) || path.ends_with("_test.cpp")) continue;
    if (std::ranges::none_of(kShortFiles, [&](auto& start) { return path.starts_with(start); }))
      continue;
    EXPECT_LE(std::ranges::count(text_of(kRoot / path), '\n'), kMostLines) << path;
  }
}

// --- names of files in comments and documents

struct Mention {
  int line = 0;
  std::string name;
};

// Comments of C++ and of scripts; of documents everything.
std::string_view readable_part(const std::string& path, std::string_view line) {
  if (path.ends_with(".md")) return line;
  const size_t at = line.find(is_source(path) ? "//" : "#");
  if (at == std::string_view::npos || line.find("#include") < at) return {};
  return line.substr(at);
}

// "task/lower.h", "rules_*.cpp", "<family>.cpp"; of a list in braces every member.
std::vector<Mention> mentions_in(const std::string& path, const std::string& text) {
  static const std::regex kName(
      R"re([\w./*<>{},-]*[\w*>}]\.(?:cpp|h|py|md|cmake|sh)(?![\w*]|\.[\w*]))re");
  static const std::regex kBraces(R"re(^(.*)\{([^}]*)\}(.*)$)re");
  std::vector<Mention> mentions;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string part(readable_part(path, line));
    for (std::sregex_iterator at(part.begin(), part.end(), kName), end; at != end; ++at) {
      const std::string name = at->str();
      std::smatch braces;
      if (!std::regex_match(name, braces, kBraces)) {
        mentions.push_back({number, name});
        continue;
      }
      std::istringstream members(braces[2]);
      for (std::string member; std::getline(members, member, ',');)
        mentions.push_back({number, braces[1].str() + member + braces[3].str()});
    }
  }
  return mentions;
}

// A file is named by its path from the root, or by the end of it. * and <...> stand for anything
// but a slash.
bool exists(const std::set<std::string>& files, const std::string& name) {
  std::string pattern;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') {
      i = std::min(name.find('>', i), name.size() - 1);
      pattern += "[^/]*";
    } else if (name[i] == '*') {
      pattern += "[^/]*";
    } else {
      if (std::string_view(".+-").find(name[i]) != std::string_view::npos) pattern += '\\';
      pattern += name[i];
    }
  }
  if (pattern.find("[^/]*") == std::string::npos)
    return files.contains(name) || std::ranges::any_of(files, [&](const std::string& file) {
             return file.ends_with("/" + name);
           });
  const std::regex whole("(.*/)?" + pattern);
  return std::ranges::any_of(
      files, [&](const std::string& file) { return std::regex_match(file, whole); });
}

TEST(Tree, FilesThatAreNamedExist) {
  const std::set<std::string> files = files_of_tree();
  size_t checked = 0;
  for (const std::string& path : files) {
    // Its own examples are of files that are not there; other people's words are data.
    if (path == "tests/layers_test.cpp" || path == "tests/tree_test.cpp") continue;
    const std::string extension = fs::path(path).extension().string();
    if (!is_source(path) && extension != ".md" && extension != ".py" && extension != ".sh" &&
        extension != ".cmake" && path != "Makefile" && path != "CMakeLists.txt")
      continue;
    for (const Mention& mention : mentions_in(path, text_of(kRoot / path))) {
      ++checked;
      EXPECT_TRUE(exists(files, mention.name))
          << path << ":" << mention.line << " names " << mention.name << ", which is not there";
    }
  }
  EXPECT_GT(checked, 100u);
}

// "search/peers/harmony/": folders by their path from the root or from windlass/.
std::vector<Mention> folders_in(const std::string& path, const std::string& text) {
  static const std::regex kFolder(R"re((^|[^\w/.$<>-])(\w+/(?:\w+/)*)(?=$|[^\w<{*"./-]))re");
  std::vector<Mention> mentions;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string part(readable_part(path, line));
    for (std::sregex_iterator at(part.begin(), part.end(), kFolder), end; at != end; ++at)
      mentions.push_back({number, (*at)[2]});
  }
  return mentions;
}

TEST(Tree, FoldersThatAreNamedExist) {
  const std::set<std::string> files = files_of_tree();
  std::set<std::string> folders;  // by every end of their paths
  for (const std::string& file : files)
    for (fs::path folder = fs::path(file).parent_path(); !folder.empty();
         folder = folder.parent_path()) {
      std::string name = folder.generic_string() + "/";
      while (!name.empty() && folders.insert(name).second) name.erase(0, name.find('/') + 1);
    }
  const auto top = [&](const std::string& name) {
    return fs::is_directory(kRoot / "windlass" / name) ||
           std::ranges::find(kFolders, name.substr(0, name.size() - 1)) != kFolders.end();
  };
  size_t checked = 0;
  for (const std::string& path : files) {
    if (!is_source(path) && !path.ends_with(".md")) continue;
    if (path == "tests/layers_test.cpp" || path == "tests/tree_test.cpp") continue;
    const std::string text = text_of(kRoot / path);
    for (const Mention& mention : folders_in(path, text)) {
      // Words with slashes are folders if they begin with one, or stand in quotes of code.
      const bool quoted = text.find("`" + mention.name + "`") != std::string::npos;
      if (!quoted && !top(mention.name.substr(0, mention.name.find('/') + 1))) continue;
      if (mention.name.starts_with("build/")) continue;
      ++checked;
      EXPECT_TRUE(folders.contains(mention.name))
          << path << ":" << mention.line << " names " << mention.name << ", which is not there";
    }
  }
  EXPECT_GT(checked, 50u);
}

TEST(Tree, FindsNamesInComments) {
  const auto names = [](const std::string& path, const std::string& text) {
    std::vector<std::string> list;
    for (const Mention& mention : mentions_in(path, text)) list.push_back(mention.name);
    return list;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names("a.h", "#include \"b.h\"  // c.h\nint d;  // (see e/f.h), g.cpp.\n"),
            (Names{"e/f.h", "g.cpp"}));
  EXPECT_EQ(names("a.md", "`rules_*.cpp`, `<family>.cpp` and `x/{a,b}.py`"),
            (Names{"rules_*.cpp", "<family>.cpp", "x/a.py", "x/b.py"}));
  // Names of tensors are no names of files.
  EXPECT_EQ(names("a.h", "// transformer.h.0.ln_1 and transformer.h.*.mlp\n"), Names{});
  EXPECT_EQ(names("a.cpp", "call(\"none.h\");\n"), Names{});

  const auto folders = folders_in("a.h", "// (search/peers/), task/ and base/units.h, 1/ 2\n");
  ASSERT_EQ(folders.size(), 3u);
  EXPECT_EQ(folders[0].name, "search/peers/");
  EXPECT_EQ(folders[1].name, "task/");
}

TEST(Tree, KnowsWhatExists) {
  const std::set<std::string> files = {"windlass/a/b.h", "windlass/a/rules_c.cpp", "top.md"};
  for (const char* name :
       {"windlass/a/b.h", "a/b.h", "b.h", "top.md", "rules_*.cpp", "<x>.md", "windlass/a/<x>.cpp"})
    EXPECT_TRUE(exists(files, name)) << name;
  for (const char* name : {"c/b.h", "ab.h", "rules.cpp", "rules_*.h", "windlass/<x>.cpp", "op.md"})
    EXPECT_FALSE(exists(files, name)) << name;
}

}  // namespace
}  // namespace windlass
