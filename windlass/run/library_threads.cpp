#include "windlass/run/library_threads.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sched.h>
#include <set>
#include <string>
#include <thread>

#include <fmt/format.h>

namespace windlass {
namespace {

// Cores that this process may use; processors that share one count once. 0 if that cannot be told.
int own_cores() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 0;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::ifstream file(
        fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    std::string siblings;
    if (!std::getline(file, siblings)) return CPU_COUNT(&allowed);
    cores.insert(siblings);
  }
  return static_cast<int>(cores.size());
}

}  // namespace

int library_threads() {
  for (const char* name : {"MKL_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const char* text = std::getenv(name);
    int threads = 0;
    if (text != nullptr) std::from_chars(text, text + std::strlen(text), threads);
    if (threads > 0) return threads;
  }
  const int cores = own_cores();
  return cores > 0 ? cores : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace windlass
