// Where tests find reference data that is not part of the repository.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "windlass/base/test_places.h"

namespace windlass {

// The folder $WINDLASS_DATA/<name>, else ../shared/data/<name> beside the repository; nothing if
// there is neither: such tests are skipped with a word.
inline std::optional<std::string> test_data(const std::string& name) {
  const char* given = std::getenv("WINDLASS_DATA");
  const std::filesystem::path folder =
      given != nullptr && *given != '\0'
          ? std::filesystem::path(given)
          : std::filesystem::path(source_folder()).parent_path() / "shared" / "data";
  if (!std::filesystem::is_directory(folder / name)) return std::nullopt;
  return (folder / name).string();
}

}  // namespace windlass
