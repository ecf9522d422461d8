#include "windlass/report/page/base64.h"

#include <cstdint>

namespace windlass {

std::string to_base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  const auto at = [&](size_t i) {
    return i < bytes.size() ? static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) : 0u;
  };
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const uint32_t word = at(i) << 16 | at(i + 1) << 8 | at(i + 2);
    text += kDigits[word >> 18];
    text += kDigits[word >> 12 & 63];
    text += i + 1 < bytes.size() ? kDigits[word >> 6 & 63] : '=';
    text += i + 2 < bytes.size() ? kDigits[word & 63] : '=';
  }
  return text;
}

}  // namespace windlass
