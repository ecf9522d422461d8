// From one layout of a tensor to another: one general redistribution. For each destination piece,
// the overlapping source pieces, plus a sum where the source holds partial sums; as collectives
// where it is one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/machine/collective.h"
#include "windlass/machine/machine.h"
#include "windlass/strategy/layout.h"

namespace windlass {

// A digit of the member number by its place value: members that differ in these digits only form
// the groups of a collective.
struct MemberDigit {
  int64_t place = 1;  // member / place % parts
  int64_t parts = 1;
  auto operator<=>(const MemberDigit&) const = default;
};

// Members that differ from `member` in these digits only, itself included, ascending.
std::vector<int64_t> peers_of(const std::vector<MemberDigit>& digits, int64_t member);
// What is shared out over these digits: the part of `elements` that is the member's.
Range share_of(int64_t elements, const std::vector<MemberDigit>& digits, int64_t member);

// Of digits over which something is shared out, those parts in which all peers are devices of the
// same type and limit on one host: together they have one copy there. `kinds`: by member, what
// tells apart members that have pieces of different sizes; none if nothing does.
std::vector<MemberDigit> digits_within_hosts(const Machine& machine,
                                             const std::vector<DeviceId>& group,
                                             const std::vector<MemberDigit>& digits,
                                             const std::vector<int32_t>& kinds = {});

// Elements that go from a member of the source group to one of the destination group.
struct MemberCopy {
  int64_t from = 0, to = 0;
  int64_t elements = 0;
};

// A step of a redistribution.
struct Move {
  bool pairwise = false;  // copies; else a collective
  Collective collective = Collective::AllReduce;
  std::vector<MemberDigit> digits;  // over which; ascending by place
  int64_t elements = 0;             // collective: of the unsplit tensor, as plan_collective counts
  std::vector<MemberCopy> copies;   // pairwise; what a member has already is not among them
  bool sums = false;                // pairwise: what arrives is added
  bool gaps = false;                // and nobody has some of what is wanted: it is zero
  Layout result;
  int64_t result_elements = 0;  // of the member with most
};

// Steps that bring a tensor from one layout to another, none if what each member wants is part of
// what it has.
struct Redistribution {
  std::vector<Move> moves;
};

// How a redistribution inside of a group is done: collectives first, and then, unless they suffice,
// pieces of `now` are copied to where `to` wants them.
struct RedistributionOutline {
  std::vector<Move> collectives;
  bool pairwise = false;
  Layout now, to;  // if pairwise
};
RedistributionOutline outline(const Shape& shape, const Layout& from, const Layout& to,
                              int64_t members);

// Inside of one group of `members`.
Redistribution redistribute(const Shape& shape, const Layout& from, const Layout& to,
                            int64_t members);

// From one group to another that shares no device with it. Partial sums are combined in the source
// group first.
Redistribution send(const Shape& shape, const Layout& from, int64_t from_members, const Layout& to,
                    int64_t to_members);

// "reduce-scatter 8, all-gather 2".
std::string format_redistribution(const Redistribution& redistribution);

}  // namespace windlass
