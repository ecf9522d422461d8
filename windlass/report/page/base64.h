// Bytes as text of 64 characters (RFC 4648), for data carried in a page.
#pragma once

#include <string>
#include <string_view>

namespace windlass {

std::string to_base64(std::string_view bytes);

}  // namespace windlass
