// Instead of ranks_c10d.cpp where the headers of Gloo are missing.
#include "windlass/base/error.h"
#include "windlass/runtime/join_ranks.h"

namespace windlass {

std::unique_ptr<Ranks> join_ranks(const RankPlace&) {
  fail_unsupported(
      "several processes: this windlass was built without Gloo; install its headers (libgloo-dev) "
      "and build again");
}

}  // namespace windlass
