#include "windlass/run/rank_environment.h"

#include <charconv>
#include <string_view>

#include "windlass/base/error.h"

namespace windlass {
namespace {

constexpr int32_t kMostRanks = 65536;
constexpr int32_t kUsualPort = 29500;  // c10d's own

using Get = std::function<const char*(const char*)>;

int32_t number_of(const Get& get, const char* name, int32_t least, int32_t most) {
  const char* text = get(name);
  if (text == nullptr) fail_input("{}: is not set", name);
  const std::string_view all = text;
  int32_t value = 0;
  const auto [end, wrong] = std::from_chars(all.data(), all.data() + all.size(), value);
  if (wrong != std::errc() || end != all.data() + all.size() || value < least || value > most)
    fail_input("{}: \"{}\" is not a number from {} to {}", name, all, least, most);
  return value;
}

void read_meeting(const Get& get, const std::string& usual_address, RankPlace& place) {
  const char* address = get("MASTER_ADDR");
  place.address = address != nullptr ? address : usual_address;
  if (place.address.empty())
    fail_input("MASTER_ADDR: is not set: name the host of rank 0, where all meet");
  place.port = get("MASTER_PORT") != nullptr ? number_of(get, "MASTER_PORT", 1, 65535) : kUsualPort;
  if (is_loopback(place.address)) place.bind = place.address;
}

}  // namespace

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

std::string first_host(const std::string& list) {
  std::string name;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      name += list[i];
      continue;
    }
    for (++i; i < list.size() && list[i] != ',' && list[i] != '-' && list[i] != ']'; ++i)
      name += list[i];
    while (i < list.size() && list[i] != ']') ++i;
  }
  return name;
}

std::optional<RankPlace> rank_from_environment(const Get& get) {
  RankPlace place;
  const auto set_place = [&](const char* rank, const char* size) {
    place.ranks = number_of(get, size, 1, kMostRanks);
    place.rank = number_of(get, rank, 0, place.ranks - 1);
  };
  const auto is_set = [&](const char* name) { return get(name) != nullptr; };
  if (is_set("RANK") && is_set("WORLD_SIZE")) {
    set_place("RANK", "WORLD_SIZE");
    if (place.alone()) return std::nullopt;
    if (const char* file = get(kMeetingVariable)) {
      place.file = file;
      place.bind = "127.0.0.1";
      return place;
    }
    read_meeting(get, {}, place);
    const char* agent = get("TORCHELASTIC_USE_AGENT_STORE");
    place.met = agent != nullptr && std::string_view(agent) == "True";
    if (const char* count = get("TORCHELASTIC_RESTART_COUNT")) place.attempt = count;
    return place;
  }
  if (is_set("OMPI_COMM_WORLD_RANK") || is_set("OMPI_COMM_WORLD_SIZE")) {
    set_place("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    if (place.alone()) return std::nullopt;
    const bool here = is_set("OMPI_COMM_WORLD_LOCAL_SIZE") &&
                      number_of(get, "OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMostRanks) == place.ranks;
    read_meeting(get, here ? "127.0.0.1" : "", place);
    return place;
  }
  // In a batch script, which is not one of the tasks, there is one task.
  if (is_set("SLURM_PROCID") && is_set("SLURM_STEP_NUM_TASKS")) {
    set_place("SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
    if (place.alone()) return std::nullopt;
    const char* hosts = get("SLURM_STEP_NODELIST");
    read_meeting(get, hosts == nullptr ? "" : first_host(hosts), place);
    return place;
  }
  // One that trains alone because of a slip would do so beside the others.
  if (is_set("RANK") != is_set("WORLD_SIZE"))
    fail_input("{0} is set, but {1} is not: set both (of several processes) or none (of one)",
               is_set("RANK") ? "RANK" : "WORLD_SIZE", is_set("RANK") ? "WORLD_SIZE" : "RANK");
  return std::nullopt;
}

}  // namespace windlass
