// The steps of a run as TensorBoard reads them: a file of records, each an event with named
// numbers.
//
// A record is its length (8 bytes), a checksum of the length, the event, a checksum of the event,
// all little-endian; a checksum is CRC-32C, turned by 15 bits, plus a constant. Events are messages
// in protobuf's wire format.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace windlass {

uint32_t crc32c(std::string_view bytes);
// A record around an event's bytes.
std::string event_record(std::string_view event);
// The event that every file begins with, and one with numbers.
std::string version_event(double wall_time);
std::string scalar_event(double wall_time, int64_t step,
                         const std::vector<std::pair<std::string, double>>& values);

class EventFile {
 public:
  // A new file in the folder, which is made if need be: a run that goes on has a file more, and
  // TensorBoard shows both as one. Throws Error{Input} if it cannot be written.
  explicit EventFile(const std::string& folder);
  // Throws Error{Runtime} if that fails.
  void add(int64_t step, const std::vector<std::pair<std::string, double>>& values);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace windlass
