// What lowering works out once: layouts, the templates of ops under a sharding, redistributions,
// and the traffic of each. Everything is found again by small integers.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/strategy/redistribute.h"
#include "windlass/strategy/strategy.h"
#include "windlass/task/facts.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// An operand of an op under a sharding.
struct OperandTemplate {
  int32_t layout = -1;
  int64_t elements = 0;  // of the member with most
};

// A tensor that an op reads.
struct ReadTemplate {
  int32_t place = 0;   // of the tensor in Tables::tensors()
  int32_t index = 0;   // among the op's inputs
  bool write = false;  // and overwrites
  OperandTemplate want;
};

// A tensor that an op makes.
struct ResultTemplate {
  Buffer buffer;  // but for the memory, the micro-batch and the tensor
  UseKind kind = UseKind::Output;
  bool term = false;     // of the gradient of a weight
  int32_t place = 0;     // of the tensor in Tables::tensors()
  int32_t index = 0;     // among the op's outputs or auxiliaries
  int64_t elements = 0;  // of the member with most
};

// What the pieces of an op exchange in a pass.
struct ExchangeTemplate {
  int32_t begin = -1;    // work of making the statistics
  int32_t traffic = -1;  // -1: nothing is exchanged
  int32_t movement = -1;
  Bytes bytes;  // of the statistics

  bool needed() const { return traffic >= 0; }
};

// A forward op and its backward op under a sharding, on a group: one for all ops that are alike, as
// layers of a network are, so that the few there are stay in the cache. Works and statistics are
// those of the largest piece; where parts are unequal, among the members that have the same sizes.
struct OpTemplate {
  // Where statistics are exchanged: of what comes after.
  int32_t work = -1;           // -1: a view
  int32_t backward_work = -1;  // -1: a view, or no backward op
  ExchangeTemplate exchange, backward_exchange;

  // What the tasks of the forward op read and make; what those of the backward op read of
  // gradients and of saved tensors, and make. Only tensors that are there.
  std::span<const ReadTemplate> reads() const { return {all_reads.data(), read_count}; }
  std::span<const ReadTemplate> gradient_reads() const {
    return {all_reads.data() + read_count, gradient_read_count};
  }
  std::span<const ReadTemplate> saved_reads() const {
    return {all_reads.data() + read_count + gradient_read_count,
            all_reads.data() + all_reads.size()};
  }
  std::span<const ResultTemplate> results() const { return {all_results.data(), result_count}; }
  std::span<const ResultTemplate> backward_results() const {
    return {all_results.data() + result_count, all_results.data() + all_results.size()};
  }
  std::vector<ReadTemplate> all_reads;
  std::vector<ResultTemplate> all_results;
  size_t read_count = 0, gradient_read_count = 0, result_count = 0;

  // Operands: inputs, outputs and auxiliaries of the forward op; then the gradients of the outputs
  // as the backward op reads them, and those of the inputs as it leaves them.
  std::vector<OperandTemplate> operands;
  uint16_t input_count = 0, output_count = 0, auxiliary_count = 0;

  const OperandTemplate* inputs() const { return operands.data(); }
  const OperandTemplate* outputs() const { return inputs() + input_count; }
  const OperandTemplate* auxiliaries() const { return outputs() + output_count; }
  const OperandTemplate* output_gradients() const { return auxiliaries() + auxiliary_count; }
  const OperandTemplate* input_gradients() const { return output_gradients() + output_count; }
  const OperandTemplate& saved(const SavedRef& ref) const {
    const auto index = static_cast<size_t>(ref.index);
    switch (ref.source) {
      case SavedRef::Source::Input: return inputs()[index];
      case SavedRef::Source::Output: return outputs()[index];
      case SavedRef::Source::Auxiliary: break;
    }
    return auxiliaries()[index];
  }
};

// A step of a redistribution, priced.
struct MoveTemplate {
  int32_t traffic = -1;
  int32_t movement = -1;
  int32_t plain_movement = -1;  // of what is complete wherever it is: nothing is added up
  int32_t layout = -1;
  int64_t elements = 0;  // of the member with most, afterwards
  bool in_place = false;
  bool crosses = false;  // from one group to another
};

class Tables {
 public:
  Tables(const TrainingGraph& training, const TrainingFacts& facts, const Machine& machine);

  // What is asked from now on is asked of this micro-batch: where they are unequal, ops and tensors
  // have its sizes. At first, and with -1, of a larger one.
  void turn_to(int32_t micro_batch) {
    if (!training_.unequal) return;
    sized_ = &training_.of(micro_batch);
    smaller_ = sized_ != &training_ ? 1 : 0;
  }
  // The step of that micro-batch.
  const TrainingGraph& sized() const { return *sized_; }

  int32_t intern(const Layout& layout);
  int32_t intern(const Sharding& sharding);
  int32_t intern(const std::vector<DeviceId>& group);
  const Layout& layout(int32_t id) const { return layouts_[static_cast<size_t>(id)]; }
  const std::vector<DeviceId>& group(int32_t id) const { return groups_[static_cast<size_t>(id)]; }

  // The op must be a forward op. The reference stays valid. Where parts are unequal: for the
  // members like member 0.
  const OpTemplate& op(OpId op, int32_t sharding, int32_t group) {
    const Made& latest = latest_[at(op)];
    const bool same = latest.sharding == sharding && latest.group == group;
    return same ? *latest.made : find_op(op, sharding, group);
  }
  // The same for the members like `member`.
  const OpTemplate& op_of_member(OpId op, int32_t sharding, int32_t group, int32_t member);
  // The tensors of a forward op and its backward op, as templates count them.
  const TensorId* tensors(OpId op) const { return tensors_.data() + first_tensor_[op.index()]; }

  // From one layout of a tensor to another, in a group or between two.
  const std::vector<MoveTemplate>& moves(const TensorType& type, int32_t from_layout,
                                         int32_t from_group, int32_t to_layout, int32_t to_group);

  // A collective over a set of digits of a group that exchanges shares of several tensors, or
  // statistics.
  int32_t exchange(Collective collective, int32_t group, int32_t digits);

  // Traffic of a collective over digits of a group; of copies between the members and host memory.
  int32_t collective(Collective collective, int32_t group, const std::vector<MemberDigit>& digits,
                     Bytes bytes);
  int32_t host_copies(int32_t group, const std::vector<int32_t>& members, bool to_host,
                      Bytes bytes);
  // The same pairwise copies between members of two groups.
  int32_t copies(int32_t from_group, int32_t to_group, const std::vector<MemberCopy>& copies,
                 int64_t element_size);

  int32_t work(const Work& work);
  // Work of adding two buffers of so many bytes into a third.
  int32_t sum_work(int64_t bytes);

  // The sum-free form of a layout: partial digits become copies.
  int32_t settled(int32_t layout) {
    const auto at = static_cast<size_t>(layout);
    return at < settled_.size() && settled_[at] >= 0 ? settled_[at] : settle(layout);
  }
  // Where gradients that lie differently are added up: sum-free, and no element in two places.
  int32_t sum_layout(TensorId tensor, int32_t layout) {
    const int32_t whole = settled(layout);
    if (!this->layout(whole).halo()) return whole;
    return intern(without_halo(this->layout(whole), sized_->graph[tensor].type.shape));
  }
  // Where a weight is kept that an op wants so: as it wants it, but where its parts overlap or
  // leave gaps. What is kept and updated is every element of the weight, in one place or in copies.
  OperandTemplate kept_weight(TensorId weight, const OperandTemplate& want);
  // The set of digits over which a gradient in this layout is partial; 0 is the empty set.
  int32_t partial_digits(int32_t layout) {
    const auto at = static_cast<size_t>(layout);
    const bool known = at < partial_digits_.size() && partial_digits_[at] >= 0;
    return known ? partial_digits_[at] : find_partial_digits(layout);
  }
  // The set of digits over which a weight in this layout is not cut.
  int32_t replica_digits(int32_t layout);
  const std::vector<MemberDigit>& digits(int32_t set) const {
    return digit_sets_[static_cast<size_t>(set)];
  }
  // Bytes of a tensor in a layout, of the member with most, as the allocator rounds them.
  int64_t allocated_bytes(TensorId tensor, int32_t layout);

  // Elements of a tensor in a layout, of the member with most among those like `member`.
  int64_t elements_of_member(TensorId tensor, int32_t layout, int32_t member);
  bool unequal(int32_t layout) const { return unequal_[static_cast<size_t>(layout)]; }

  // Those of the digits, as far as members that differ in them only are on the same host and, as
  // `kinds` says (size_kinds), have pieces of the same size.
  int32_t within_hosts(int32_t set, int32_t group, const std::vector<int32_t>& kinds);
  // How many different parts of a layout, or shares of them, these members have on the host that
  // holds most.
  int64_t parts_on_host(int32_t group, const std::vector<int32_t>& members, int32_t layout,
                        int32_t share);
  // Members that differ in a set of digits only.
  int64_t members(int32_t set) const {
    int64_t count = 1;
    for (const MemberDigit& digit : digits(set)) count *= digit.parts;
    return count;
  }

  std::vector<Work> works;
  std::vector<Traffic> traffics;
  std::vector<Movement> movements;
  const std::vector<Layout>& layouts() const { return layouts_; }
  const std::vector<Sharding>& shardings() const { return shardings_; }
  const std::vector<std::vector<DeviceId>>& groups() const { return groups_; }
  const std::vector<std::vector<MemberDigit>>& digit_sets() const { return digit_sets_; }

 private:
  const std::vector<MoveTemplate>& find_moves(const TensorType& type, int32_t from_layout,
                                              int32_t from_group, int32_t to_layout,
                                              int32_t to_group);
  const OpTemplate& find_op(OpId op, int32_t sharding, int32_t group);
  const OpTemplate& make_op(OpId op, int32_t sharding, int32_t group);
  OpTemplate make(const Op& op, const Sharding& sharding, int32_t group, int32_t member);
  void find_models();
  void list_tensors();
  void list_operands(const Op& op, int32_t group, OpTemplate& made) const;
  void list_backward(const Op& backward, int32_t group, OpTemplate& made);
  ResultTemplate result(TensorId tensor, const OperandTemplate& operand, int32_t group) const;
  bool alike(OpId a, OpId b) const;
  OperandTemplate operand(const LoopNest& nest, const Sharding& sharding, const OperandMap& map,
                          const TensorType& type, Access access);
  int32_t price(const Op& op, const LoopNest& nest, const Sharding& sharding, int32_t group,
                int32_t member, ExchangeTemplate& exchange);
  int32_t add_traffic(Traffic traffic);
  int32_t find_partial_digits(int32_t layout);
  int32_t settle(int32_t layout);
  int32_t intern_digits(std::vector<MemberDigit> digits);

  size_t at(OpId op) const { return smaller_ * training_.forward_ops + op.index(); }
  size_t at(TensorId tensor) const {
    return smaller_ * training_.graph.tensors.size() + tensor.index();
  }

  const TrainingGraph& training_;
  const TrainingGraph* sized_;
  size_t smaller_ = 0;  // 1: of the smaller micro-batches
  const TrainingFacts& facts_;
  const Machine& machine_;
  TrafficPlanner planner_;
  std::vector<OpId> backward_of_;  // by forward op
  // By forward op: the first one of which all is the same but for the tensors themselves: kind,
  // attributes and types of both passes, and what is kept of them. So are its templates.
  std::vector<OpId> model_;
  // What is read and made that is there, op by op: inputs of the forward op and of the backward op;
  // outputs, auxiliaries, and outputs of the backward op.
  std::vector<TensorId> tensors_;
  std::vector<uint32_t> first_tensor_;  // by forward op
  std::vector<Layout> layouts_;
  std::vector<bool> unequal_;  // parallel to layouts_
  std::vector<Sharding> shardings_;
  std::vector<std::vector<DeviceId>> groups_;
  std::unordered_map<uint64_t, std::vector<int32_t>> layout_index_, work_index_;
  std::unordered_map<int64_t, int32_t> sum_works_;  // by bytes
  std::map<Sharding, int32_t> sharding_index_;
  std::map<std::vector<DeviceId>, int32_t> group_index_;
  struct Made {
    int32_t sharding = -1, group = -1;
    const OpTemplate* made = nullptr;
  };
  std::vector<std::vector<Made>> op_index_;  // by op of each size
  std::vector<Made> latest_;                 // by op of each size, asked for last
  std::vector<std::vector<MemberDigit>> digit_sets_;
  std::vector<int32_t> partial_digits_;  // by layout
  std::vector<int32_t> settled_;         // by layout
  std::deque<OpTemplate> templates_;     // references stay valid
  std::map<std::tuple<Shape, DType, int32_t, int32_t, int32_t, int32_t>, int32_t> move_index_;
  std::deque<std::vector<MoveTemplate>> moves_;
  // What was asked for lately: the map compares long keys again and again.
  struct RecentMove {
    TensorType type = {};
    int32_t from_layout = -1, from_group = -1, to_layout = -1, to_group = -1;
    const std::vector<MoveTemplate>* moves = nullptr;
  };
  std::vector<RecentMove> recent_moves_ = std::vector<RecentMove>(4096);
  std::map<std::tuple<Collective, int32_t, std::vector<MemberDigit>, int64_t>, int32_t>
      collective_index_;
  std::map<std::tuple<int32_t, std::vector<int32_t>, bool, int64_t>, int32_t> host_index_;
  std::map<std::tuple<Collective, int32_t, int32_t>, int32_t> exchange_index_;
  std::map<std::tuple<int32_t, int32_t, std::vector<int32_t>>, int32_t>
      host_digits_;  // by set, group and kinds
  std::map<std::tuple<int32_t, std::vector<int32_t>, int32_t, int32_t>, int64_t> host_parts_;
  std::vector<std::vector<std::pair<int32_t, int64_t>>> sizes_;  // by tensor of each size:
                                                                 // layout and bytes
  // Where parts are unequal: of members other than 0; of all.
  std::map<std::tuple<size_t, int32_t, int32_t, int32_t>, OpTemplate> member_templates_;
  std::map<std::tuple<size_t, int32_t, int32_t>, int64_t> member_elements_;
};

}  // namespace windlass
