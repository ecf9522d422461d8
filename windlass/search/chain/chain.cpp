// The recurrence, from the last block to the first.
//
//   F(i, q, s): blocks i.. to the end, forward and backward, when q units wait for the copy engine
//   and the input of block i is on the device (s = 0) or was sent (s = 1: its bytes e = input[i]
//   are live again while block i is under way). Points (time, bytes above what is kept before).
//     option k   time forward_k + backward_k, and F(i+1, q', sends_output_k)
//                bytes max( q unit + e + kept_k + max(forward_bytes_k, backward_bytes_k),
//                           kept_k + those of F )
//     pass i..j-1, store or send input[j], and come back
//                time  pass_i + .. + pass_j-1, F(j, q', sent) and T(i, j-1)
//                bytes max( q unit + e + max pass_bytes, q unit + e + those of T,
//                           (input[j] unless sent) + those of F )
//     q' = what is left of q when the forward time is over, plus what is sent. After an option that
//     sends, all of it may be waited for, out and back: 2 q' unit_time.
//   T(i, l): blocks i..l run for the second time, nothing sent. Single: options only. Nested:
//   passes as well, F replaced by T(j, l).
//
// A sum of two lists at equal limits goes through both once. With L blocks, K options, Q units and
// lists of n points: F takes O(L (L + K) Q n), T in nested mode O(L^3 n), with runs of equal blocks
// solved once.
#include "windlass/search/chain/chain.h"

#include <algorithm>
#include <map>

#include "windlass/base/error.h"

namespace windlass {
namespace {

bool same(const ChainOption& a, const ChainOption& b) {
  return a.forward == b.forward && a.backward == b.backward && a.kept == b.kept &&
         a.forward_bytes == b.forward_bytes && a.backward_bytes == b.backward_bytes &&
         a.sent == b.sent && a.sends_output == b.sends_output && a.first == b.first &&
         a.again == b.again;
}

bool same(const ChainBlock& a, const ChainBlock& b) {
  return a.input == b.input && a.pass == b.pass && a.pass_bytes == b.pass_bytes &&
         std::ranges::equal(a.options, b.options,
                            [](const auto& x, const auto& y) { return same(x, y); });
}

}  // namespace

ChainSolver::ChainSolver(const Chain& chain, const ChainSolverOptions& options)
    : chain_(chain),
      options_(options),
      longest_pass_(options.longest_pass == 0 ? chain.blocks.size() : options.longest_pass) {
  check();
  moved_.assign(size() + 1, 0);
  if (chain_.most_units > 0) {
    // Sums are rounded, not terms: blocks that are short for a unit count as well.
    int64_t time = 0;
    for (size_t i = 0; i < size(); ++i) {
      time += chain_.blocks[i].pass;
      moved_[i + 1] = time / chain_.unit_time;
    }
  }
  exact_ = options_.resolution == 0 && chain_.in_flight == 1;
  error_bytes_ = options_.resolution * static_cast<int64_t>(size());
  find_classes();
  solve_inner();
  solve_outer();
  for (const Entry& entry : outer_[index({})]) {
    const int64_t bytes = std::max(entry.bytes, chain_.floor);
    if (!frontier_.empty() && frontier_.back().bytes == bytes) frontier_.pop_back();
    frontier_.push_back({entry.time, bytes});
  }
}

void ChainSolver::check() const {
  if (chain_.blocks.empty()) fail_input("chain: no blocks");
  for (size_t i = 0; i < size(); ++i) {
    const auto& list = chain_.blocks[i].options;
    if (std::ranges::none_of(list, &ChainOption::first) ||
        std::ranges::none_of(list, &ChainOption::again))
      fail_input("chain: block {} has no option for its first or second run", i);
    if (std::ranges::any_of(list,
                            [](const auto& option) { return option.again && option.sent > 0; }))
      fail_input("chain: block {} sends something in a second run", i);
  }
  if (chain_.most_units > 0 && (chain_.link_unit <= 0 || chain_.unit_time <= 0))
    fail_input("chain: the copy engine needs a unit and its time");
}

int32_t ChainSolver::units(int64_t bytes) const {
  if (bytes == 0) return 0;
  if (chain_.most_units == 0) return 1;  // more than may wait
  const int64_t count = (bytes + chain_.link_unit - 1) / chain_.link_unit;
  return static_cast<int32_t>(std::min<int64_t>(count, chain_.most_units + 1));
}

// What is left of the units that wait when blocks [first, last) have run.
int32_t ChainSolver::after(size_t first, size_t last, int32_t waiting) const {
  return static_cast<int32_t>(std::max<int64_t>(0, waiting - (moved_[last] - moved_[first])));
}

void ChainSolver::find_classes() {
  class_.resize(size());
  for (size_t i = 0; i < size(); ++i) {
    class_[i] = static_cast<int32_t>(i);
    for (size_t j = 0; j < i; ++j)
      if (class_[j] == static_cast<int32_t>(j) && same(chain_.blocks[i], chain_.blocks[j])) {
        class_[i] = static_cast<int32_t>(j);
        break;
      }
  }
}

void ChainSolver::solve_inner() {
  inner_of_.assign(size() * size(), -1);
  // Runs of the same classes are one: known by their first block and the run of the others.
  std::map<std::pair<int32_t, int32_t>, int32_t> known;
  inner_.reserve(size() * size() / 2);  // steps point to lists
  Steps steps;
  for (size_t length = 1; length < size() && length <= longest_pass_; ++length)
    for (size_t first = 0; first + length < size(); ++first) {
      const size_t last = first + length - 1;
      const std::pair key(class_[first], length == 1 ? -1 : inner_of_[(first + 1) * size() + last]);
      const auto [entry, fresh] = known.try_emplace(key, static_cast<int32_t>(inner_.size()));
      inner_of_[first * size() + last] = entry->second;
      if (!fresh) continue;
      List& list = inner_.emplace_back();
      inner_steps(first, last, steps);
      for (const Step& step : steps) combine(step, list);
      thin(list);
    }
}

void ChainSolver::inner_steps(size_t first, size_t last, Steps& steps) const {
  steps.clear();
  const ChainBlock& block = chain_.blocks[first];
  Step step;
  step.first = first;
  step.next.block = first + 1;
  if (first < last) step.following = &inner_list(first + 1, last);
  step.end = first == last;
  for (size_t k = 0; k < block.options.size(); ++k) {
    const ChainOption& option = block.options[k];
    if (!option.again) continue;
    step.option = static_cast<int32_t>(k);
    step.time = option.forward + option.backward;
    step.bytes = option.kept + std::max(option.forward_bytes, option.backward_bytes);
    step.kept = option.kept;
    steps.push_back(step);
  }
  if (options_.mode == ChainMode::Single) return;
  step = {};
  step.first = first;
  for (size_t next = first + 1; next <= std::min(last, first + longest_pass_); ++next) {
    step.time += chain_.blocks[next - 1].pass;
    step.bytes = std::max(step.bytes, chain_.blocks[next - 1].pass_bytes);
    step.kept = chain_.blocks[next].input;
    step.next.block = next;
    step.following = &inner_list(next, last);
    step.again = &inner_list(first, next - 1);
    steps.push_back(step);
  }
}

// Adds a step that leaves so many units waiting and sends so many bytes.
void ChainSolver::add_step(const Step& step, int32_t left, int64_t sent, Steps& steps) const {
  const int32_t now = left + units(sent);
  Step made = step;
  made.end = step.next.block == size();
  if (now <= chain_.most_units) {
    made.next.waiting = now;
    // The last backward block wants what went out last.
    if (made.end)
      made.time += 2 * now * chain_.unit_time;
    else
      made.following = &outer_[index(made.next)];
    steps.push_back(made);
  }
  if (sent == 0 || made.end || chain_.most_units == 0 || step.option < 0) return;
  made = step;
  made.wait = true;
  made.next.waiting = 0;
  made.following = &outer_[index(made.next)];
  const int64_t count = left + (sent + chain_.link_unit - 1) / chain_.link_unit;
  made.time += 2 * count * chain_.unit_time;
  steps.push_back(made);
}

void ChainSolver::outer_steps(const State& from, Steps& steps) const {
  steps.clear();
  const ChainBlock& block = chain_.blocks[from.block];
  const int64_t beside = from.waiting * chain_.link_unit + (from.sent ? block.input : 0);
  Step step;
  step.first = from.block;
  step.next.block = from.block + 1;
  step.in_flight = chain_.in_flight;
  for (size_t k = 0; k < block.options.size(); ++k) {
    const ChainOption& option = block.options[k];
    if (!option.first) continue;
    step.option = static_cast<int32_t>(k);
    step.time = option.forward + option.backward;
    step.bytes = beside + option.kept + std::max(option.forward_bytes, option.backward_bytes);
    step.kept = option.kept;
    step.next.sent = option.sends_output;
    add_step(step, after(from.block, from.block + 1, from.waiting), option.sent, steps);
  }
  step.option = -1;
  step.time = 0;
  step.bytes = 0;
  step.offset = beside;
  const size_t past = std::min(size(), from.block + longest_pass_ + 1);
  for (size_t next = from.block + 1; next < past; ++next) {
    step.time += chain_.blocks[next - 1].pass;
    step.bytes = std::max(step.bytes, beside + chain_.blocks[next - 1].pass_bytes);
    step.next.block = next;
    step.again = &inner_list(from.block, next - 1);
    const int64_t input = chain_.blocks[next].input;
    const int32_t left = after(from.block, next, from.waiting);
    step.next.sent = false;
    step.kept = input;
    add_step(step, left, 0, steps);
    if (chain_.most_units == 0 || input == 0) continue;
    step.next.sent = true;
    step.kept = 0;
    add_step(step, left, input, steps);
  }
}

void ChainSolver::solve_outer() {
  outer_.resize(index({.block = size()}));
  // Which states come up at all, from the first block on.
  std::vector<char> reached(outer_.size(), 0);
  reached[index({})] = 1;
  const auto each_state = [&](size_t block, const auto& visit) {
    for (int32_t waiting = 0; waiting <= chain_.most_units; ++waiting)
      for (const bool sent : {false, true})
        if (const State state = {block, waiting, sent}; reached[index(state)] != 0) visit(state);
  };
  Steps steps;
  for (size_t i = 0; i < size(); ++i)
    each_state(i, [&](const State& state) {
      outer_steps(state, steps);
      for (const Step& step : steps)
        if (!step.end) reached[index(step.next)] = 1;
    });
  for (size_t i = size(); i-- > 0;)
    each_state(i, [&](const State& state) {
      outer_steps(state, steps);
      List& list = outer_[index(state)];
      for (const Step& step : steps) combine(step, list);
      thin(list);
    });
}

int64_t ChainSolver::bytes_of(const Step& step, const Entry& following, const Entry& again) {
  const int64_t here =
      step.again == nullptr ? step.bytes : std::max(step.bytes, again.bytes + step.offset);
  return std::max(here + (step.in_flight - 1) * (step.kept + following.kept),
                  step.in_flight * step.kept + following.bytes);
}

// Adds the points of a step to a list: for each limit the fastest of what follows, and of the
// blocks that are run again. Mostly nothing of it is new, so that is found out first, and only what
// comes after the first point that may be is written.
void ChainSolver::combine(const Step& step, List& list) {
  static const List kNothing = {Entry{}};
  const List& next = step.following == nullptr ? kNothing : *step.following;
  const List& again = step.again == nullptr ? kNothing : *step.again;
  // Nothing can follow if the copy engine has too much to do.
  if (next.empty()) return;
  // Bytes of a point are at least these: more with more micro-batches, or for a faster second run.
  const int64_t here = bytes_of(step, {.bytes = INT64_MIN / 2}, again.front());
  const int64_t shift = step.in_flight * step.kept;
  const auto least = [&](const Entry* x) { return std::max(here, x->bytes + shift); };
  const int64_t time = step.time + again.back().time;
  const Entry* x = next.data();
  const Entry* const end = x + next.size();
  // Of those that stay below what is live here anyway, the last is the fastest.
  if (step.in_flight == 1)
    x = std::max(x, std::ranges::upper_bound(x, end, here - shift, {}, &Entry::bytes) - 1);
  // Runs of points whose least bytes and best time are beaten by one point of the list are skipped,
  // longer and longer ones.
  const Entry* at = list.data();
  const Entry* const list_end = at + list.size();
  std::ptrdiff_t run = end - x;
  while (x < end) {
    at = std::ranges::upper_bound(at, list_end, least(x), {}, &Entry::bytes);
    const int64_t beaten_by = at == list.data() ? INT64_MAX : at[-1].time;
    while (run > 1 && x[run - 1].time + time < beaten_by) run /= 2;
    if (x[run - 1].time + time < beaten_by) break;
    x += run;
    run = std::min(2 * run, end - x);
  }
  if (x == end) return;
  auto from = static_cast<size_t>(at - list.data());
  if (from > 0 && list[from - 1].bytes == least(x)) --from;
  fill_stream(step, x, end, again);
  merge(list, from);
}

// The points of a step from one of what follows on, by bytes.
void ChainSolver::fill_stream(const Step& step, const Entry* x, const Entry* end,
                              const List& again) {
  stream_.clear();
  const auto add = [&](const Entry& following, const Entry& second) {
    stream_.push_back({following.time + second.time + step.time, bytes_of(step, following, second),
                       step.kept + following.kept});
  };
  if (again.size() == 1 || step.in_flight > 1) {
    for (; x < end; ++x)
      for (const Entry& second : again) add(*x, second);
    return sort_stream();
  }
  size_t b = 0;
  int64_t limit = bytes_of(step, *x, again.front());
  while (true) {
    while (x + 1 < end && x[1].bytes + step.kept <= limit) ++x;
    while (b + 1 < again.size() && again[b + 1].bytes + step.offset <= limit) ++b;
    add(*x, again[b]);
    const bool more_next = x + 1 < end, more_again = b + 1 < again.size();
    if (!more_next && !more_again) break;
    limit = INT64_MAX;
    if (more_next) limit = x[1].bytes + step.kept;
    if (more_again) limit = std::min(limit, again[b + 1].bytes + step.offset);
  }
}

// With several micro-batches in flight, more bytes of what follows need not mean more here.
void ChainSolver::sort_stream() {
  if (!std::ranges::is_sorted(stream_, {}, &Entry::bytes))
    std::ranges::stable_sort(stream_, {}, &Entry::bytes);
}

// The points of the list from an index on and of the stream, both by bytes, without those that
// another one beats.
void ChainSolver::merge(List& list, size_t from) {
  room_.resize(std::max(room_.size(), list.size() - from + stream_.size()));
  Entry* out = room_.data();
  int64_t beaten_by = from > 0 ? list[from - 1].time : INT64_MAX;
  const auto put = [&](const Entry& entry) {
    if (beaten_by <= entry.time) return;
    if (out != room_.data() && out[-1].bytes == entry.bytes) --out;
    *out++ = entry;
    beaten_by = entry.time;
  };
  auto a = list.begin() + static_cast<std::ptrdiff_t>(from);
  auto b = stream_.begin();
  while (a != list.end() && b != stream_.end()) put(a->bytes <= b->bytes ? *a++ : *b++);
  for (; a != list.end(); ++a) put(*a);
  for (; b != stream_.end(); ++b) put(*b);
  list.resize(from);
  list.insert(list.end(), room_.data(), out);
}

// Of points in the same interval of bytes the fastest stays. The first of all stays too, so that
// the least limit is exact.
void ChainSolver::thin(List& list) const {
  if (options_.resolution == 0 || list.size() < 3) return;
  size_t out = 1;
  for (size_t i = 1; i < list.size(); ++i) {
    const bool last = i + 1 == list.size();
    if (!last && list[i].bytes / options_.resolution == list[i + 1].bytes / options_.resolution)
      continue;
    list[out++] = list[i];
  }
  list.resize(out);
}

}  // namespace windlass
