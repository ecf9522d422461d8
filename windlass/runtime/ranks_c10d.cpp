// Ranks over libtorch's c10d: messages by ProcessGroupGloo, signs of life (rank_pulse.h) by its
// store.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "windlass/base/error.h"
#include "windlass/run/rank_environment.h"
#include "windlass/runtime/connections.h"
#include "windlass/runtime/join_ranks.h"
#include "windlass/runtime/listening.h"
#include "windlass/runtime/rank_pulse.h"

namespace windlass {
namespace {

using Milliseconds = std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;
using Store = c10::intrusive_ptr<c10d::Store>;
using Gloo = c10d::ProcessGroupGloo;

// Waiting for a message ends by a message, or because a rank is lost.
constexpr Milliseconds kForEver = std::chrono::hours(24 * 365);
// What programs may take to start, beyond the time-out.
constexpr double kStartSeconds = 5;
constexpr Milliseconds kPartingTime(1000);

double seconds_since(SteadyClock::time_point begin) {
  return std::chrono::duration<double>(SteadyClock::now() - begin).count();
}
Milliseconds milliseconds(double s) { return Milliseconds(static_cast<int64_t>(s * 1e3)); }

template <typename... Args>
[[noreturn]] void fail_run(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::Runtime, fmt::format(format, std::forward<Args>(args)...));
}

std::string listed(const std::vector<int32_t>& ranks) {
  std::string text;
  for (int32_t rank : ranks) text += fmt::format("{}{}", text.empty() ? "" : ",", rank);
  return text;
}

// Newer libtorch asks for libuv unless it is told not to, which not every build has (Debian 13's).
template <class Options>
void without_libuv(Options& options) {
  if constexpr (requires { options.useLibUV; }) options.useLibUV = false;
}

class StoreBoard final : public NoteBoard {
 public:
  // Some stores live only as long as what they were made of.
  StoreBoard(Store meeting, Store store) : meeting_(std::move(meeting)), store_(std::move(store)) {}
  void set(const std::string& key, const std::string& text) override {
    store_->set(key, {text.begin(), text.end()});
  }
  std::string get(const std::string& key) override {
    const std::vector<uint8_t> bytes = store_->get(key);
    return {bytes.begin(), bytes.end()};
  }
  bool has(const std::string& key) override { return store_->check({key}); }
  int64_t count(const std::string& key) override { return store_->add(key, 1); }

 private:
  const Store meeting_, store_;
};

// Where a group finds the addresses of its members. The stores themselves serve nobody else of this
// process while one waits, which would take its signs of life away; and a member that is lost ends
// the wait, as does one that has left.
class PatientStore final : public c10d::PrefixStore {
 public:
  PatientStore(const std::string& name, c10::intrusive_ptr<c10d::Store> store,
               std::shared_ptr<RankPulse> pulse, double patience)
      : PrefixStore(name, std::move(store)), pulse_(std::move(pulse)), patience_(patience) {}
  std::vector<uint8_t> get(const std::string& key) override {
    wait({key});
    return PrefixStore::get(key);
  }
  void wait(const std::vector<std::string>& keys) override {
    const auto begin = SteadyClock::now();
    for (; !check(keys); std::this_thread::sleep_for(Milliseconds(10))) {
      pulse_->throw_if_failed();
      if (seconds_since(begin) > patience_)
        throw std::runtime_error(fmt::format("no word of others for {} s", patience_));
    }
  }
  void wait(const std::vector<std::string>& keys, const Milliseconds&) override { wait(keys); }

 private:
  const std::shared_ptr<RankPulse> pulse_;
  const double patience_;
};

// Ends the pulse, whatever else has come to be.
struct OwnPulse {
  ~OwnPulse() {
    if (pulse) pulse->end();
  }
  RankPulse* operator->() const { return pulse.get(); }
  std::shared_ptr<RankPulse> pulse;
};

class C10dRanks final : public Ranks {
 public:
  explicit C10dRanks(const RankPlace& place) : Ranks(place.rank, place.ranks), place_(place) {
    meet();
    pulse_->begin();
    const auto begin = SteadyClock::now();
    try {
      group_ = connect("all", rank(), size(), patience());
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      // Whoever is lost is known when it has been silent for so long.
      const double left = patience() - seconds_since(begin);
      pulse_->throw_failed(fmt::format("the ranks cannot connect: {}", reason_line(error.what())),
                           left);
    }
  }

  void exchange(uint32_t tag, std::span<const Transfer> sends,
                std::span<const Transfer> receives) override {
    // Tensors must outlive the works, which look at them when they end.
    std::list<Pending> pending;
    int32_t peer = -1;
    const auto post = [&](const Transfer& transfer, bool sending) {
      peer = transfer.peer;
      if (transfer.bytes.empty()) return;
      std::vector<at::Tensor> tensors = {
          at::from_blob(transfer.bytes.data(), {static_cast<int64_t>(transfer.bytes.size())},
                        at::TensorOptions(at::kByte))};
      const auto label = static_cast<int>(tag);
      const auto work = sending ? group_->send(tensors, transfer.peer, label)
                                : group_->recv(tensors, transfer.peer, label);
      pending.push_back({work, transfer.peer});
      {
        const std::lock_guard lock(mutex_);
        under_way_.push_back(&pending.back());
      }
      pulse_->throw_if_failed();
    };
    try {
      try {
        for (const Transfer& transfer : receives) post(transfer, false);
        for (const Transfer& transfer : sends) post(transfer, true);
        for (const Pending& work : pending) {
          peer = work.peer;
          if (!work.work->wait(kForEver)) throw std::runtime_error("given up");
        }
      } catch (const Error&) {
        throw;
      } catch (const std::exception& error) {
        pulse_->throw_failed(fmt::format("rank {} is gone ({})", peer, reason_line(error.what())));
      }
      pulse_->throw_if_failed();
    } catch (...) {
      forget(pending);
      throw;
    }
    forget(pending);
  }

  void fail(const std::string& message) noexcept override { pulse_->fail(message); }

  std::unique_ptr<SumGroup> make_sum_group(const std::vector<int32_t>& members) override {
    const std::string name = fmt::format("sums/{}/{}", listed(members), groups_of_[members]++);
    const auto place = static_cast<int>(std::ranges::find(members, rank()) - members.begin());
    try {
      // Tags are those of groups of the whole run: the first member draws it.
      const Store names = c10::make_intrusive<PatientStore>(name, store_, pulse_.pulse, patience());
      if (place == 0) {
        const std::string number = std::to_string(store_->add("sums", 1));
        names->set("number", std::vector<uint8_t>(number.begin(), number.end()));
      }
      const std::vector<uint8_t> number = names->get("number");
      const auto tag =
          kSumTag + static_cast<uint32_t>(std::stoul(std::string(number.begin(), number.end())));
      come_together(members, tag);
      auto group = connect(name, place, static_cast<int>(members.size()), place_.time_out);
      return std::make_unique<C10dSums>(*this, members, tag, std::move(group));
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      pulse_->throw_failed(
          fmt::format("ranks {} cannot connect: {}", listed(members), reason_line(error.what())));
    }
  }

  bool one_host() const override { return !place_.file.empty() || is_loopback(place_.bind); }

  double now() const override {
    return std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count() + offset_;
  }
  // Processes of one host have one clock.
  void align_clock() override {
    if (one_host()) return;
    const ClockReading found = read_clock(*this);
    offset_ += found.offset;
    clock_error_ = found.error;
    aligned_ = now();
  }
  double clock_error() const override {
    return one_host() || rank() == 0 ? 0 : clock_error_ + kClockDrift * (now() - aligned_);
  }

 private:
  // What waits in the library waits for messages alone, and not for kernels, as all have come: so
  // that its own time-out, which nobody can end before, is that of the ranks.
  class C10dSums final : public SumGroup {
   public:
    C10dSums(C10dRanks& ranks, std::vector<int32_t> members, uint32_t tag,
             c10::intrusive_ptr<Gloo> group)
        : ranks_(ranks), members_(std::move(members)), tag_(tag), group_(std::move(group)) {}
    void add_up(std::span<float> values) override {
      ranks_.come_together(members_, tag_);
      std::vector<at::Tensor> tensors = {at::from_blob(
          values.data(), {static_cast<int64_t>(values.size())}, at::TensorOptions(at::kFloat))};
      try {
        group_->allreduce(tensors)->wait(kForEver);
      } catch (const std::exception& error) {
        ranks_.pulse_->throw_failed(fmt::format("one of ranks {} is gone ({})", listed(members_),
                                                reason_line(error.what())));
      }
    }

   private:
    C10dRanks& ranks_;
    const std::vector<int32_t> members_;
    const uint32_t tag_;
    const c10::intrusive_ptr<Gloo> group_;
  };

  void come_together(const std::vector<int32_t>& members, uint32_t tag) {
    std::byte here = {};
    std::vector<std::byte> theirs(members.size());
    std::vector<Transfer> sends, receives;
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i] == rank()) continue;
      sends.push_back({members[i], {&here, 1}});
      receives.push_back({members[i], {&theirs[i], 1}});
    }
    exchange(tag, sends, receives);
  }

  struct Pending {
    c10::intrusive_ptr<c10d::Work> work;
    int32_t peer = -1;
  };

  void forget(const std::list<Pending>& pending) {
    const std::lock_guard lock(mutex_);
    std::erase_if(under_way_, [&](const Pending* one) {
      return std::ranges::any_of(pending, [&](const Pending& other) { return &other == one; });
    });
  }
  // Who waits, waits no longer.
  void abort_all() {
    const std::lock_guard lock(mutex_);
    for (const Pending* one : under_way_) one->work->abort();
  }

  c10::intrusive_ptr<Gloo> connect(const std::string& name, int place, int count, double seconds) {
    const auto options = Gloo::Options::create(milliseconds(seconds));
    options->threads = 1;
    const std::set<int> before = event_loops();
    try {
      options->devices = {place_.bind.empty() ? Gloo::createDefaultDevice()
                                              : Gloo::createDeviceForHostname(place_.bind)};
    } catch (const std::exception& error) {
      pulse_->throw_failed(fmt::format("rank {} cannot listen at {}: {}", rank(),
                                       place_.bind.empty() ? "its host's name" : place_.bind,
                                       reason_line(error.what())),
                           0);
    }
    std::set<int> loops = event_loops();  // that serve the connections of the group
    for (int other : before) loops.erase(other);
    auto group = c10::make_intrusive<Gloo>(
        c10::make_intrusive<PatientStore>(name, store_, pulse_.pulse, patience()), place, count,
        options);
    end_dead_connections(loops, place_.time_out);
    return group;
  }

  // All come to the store; who does not is named.
  void meet() {
    // The store writes to ranks that are gone. A program that minds this signal keeps its way.
    struct sigaction pipe = {};
    if (sigaction(SIGPIPE, nullptr, &pipe) == 0 && pipe.sa_handler == SIG_DFL)
      std::signal(SIGPIPE, SIG_IGN);
    const bool here = !place_.file.empty();
    const bool keeps = rank() == 0 && !place_.met && !here;
    const std::string where =
        here ? place_.file : fmt::format("{}:{}", place_.address, place_.port);
    const std::string keeper = place_.met ? "torchrun's agent" : "rank 0";
    if (!here) check_addresses({place_.address}, patience());
    if (!place_.bind.empty()) check_addresses({place_.bind}, patience());
    try {
      open_store(keeps, milliseconds(patience() - over()));
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      if (keeps) fail_run("{}: cannot be listened on: {}", where, reason_line(error.what()));
      if (here) fail_run("{}: {}", where, reason_line(error.what()));
      fail_run("{} was not met at {} within {} s: {}", keeper, where, patience(),
               reason_line(error.what()));
    }
    store_ = c10::make_intrusive<c10d::PrefixStore>("windlass/" + place_.attempt, meeting_);
    RankPulse::Options options = {.time_out = place_.time_out, .keeps_board = keeps};
    options.stop = [this] { abort_all(); };
    if (place_.stuck)
      options.stuck = [this](const Error& error) {
        const std::string what = at();
        place_.stuck(what.empty() || error.message().starts_with(what) ? error
                                                                       : error.within(what));
      };
    options.board = here ? "a rank that has the file where all meet" : keeper + ", where all meet,";
    const std::string board = options.board;
    pulse_.pulse = std::make_shared<RankPulse>(
        rank(), size(), std::make_shared<StoreBoard>(meeting_, store_), std::move(options));
    try {
      // An agent's store may still have what a start before this one has left.
      pulse_->meet(patience(), !place_.met, over());
      if (keeps && !place_.bind.empty())
        end_connections_elsewhere(place_.port, {place_.address, place_.bind});
    } catch (const Error&) {
      // The others find out by themselves, as long as the store is there.
      if (keeps) std::this_thread::sleep_for(kPartingTime);
      throw;
    } catch (const std::exception& error) {
      fail_run("{} is gone: {} ({})", board, where, reason_line(error.what()));
    }
  }

  void open_store(bool keeps, Milliseconds limit) {
    if (place_.file.empty()) {
      c10d::TCPStoreOptions options;
      options.port = static_cast<uint16_t>(place_.port);
      options.isServer = keeps;
      options.waitWorkers = false;
      options.timeout = limit;
      without_libuv(options);
      meeting_ = c10::make_intrusive<c10d::TCPStore>(place_.address, options);
      if (keeps && !place_.bind.empty()) keep_to_own_addresses();
    } else {
      meeting_ = c10::make_intrusive<c10d::FileStore>(place_.file, place_.ranks);
    }
    meeting_->setTimeout(limit);
  }

  // The store listens on all addresses.
  void keep_to_own_addresses() {
    try {
      accept_only_at(place_.port, {place_.address, place_.bind});
    } catch (const Error& error) {
      fail_run(
          "{}:{}: others cannot be kept away from this port: {}. --hosts opens none; with "
          "MASTER_ADDR an address of this host that others reach, and without --bind, it is open "
          "to all that reach this host",
          place_.address, place_.port, error.message());
    }
  }
  double patience() const { return place_.time_out + kStartSeconds; }
  double over() const { return std::min(place_.age, kStartSeconds); }

  const RankPlace place_;
  Store meeting_, store_;
  c10::intrusive_ptr<Gloo> group_;
  std::map<std::vector<int32_t>, int> groups_of_;      // by members: how many were made
  double offset_ = 0, clock_error_ = 0, aligned_ = 0;  // seconds

  std::mutex mutex_;
  std::vector<const Pending*> under_way_;
  OwnPulse pulse_;
};

}  // namespace

std::unique_ptr<Ranks> join_ranks(const RankPlace& place) {
  auto ranks = std::make_unique<C10dRanks>(place);
  ranks->align_clock();
  return ranks;
}

}  // namespace windlass
