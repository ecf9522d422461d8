// Search by rungs: a larger limit never gives a slower plan.
//
// A search is local, and what it finds at one limit may be slower than what it finds at a smaller
// one. So plans are found at limits that do not depend on the limit that is asked for, and in an
// order that makes their times fall as limits grow, by construction:
//
//  - the top: what is found without limits. It stands from its own peak on.
//  - between two rungs whose plans take T_low and T_high, at the geometric mean of their limits (at
//    half the upper one, as long as there is no lower one): a search that begins at both plans. Of
//    what it finds, that which takes at least T_high and at most T_low counts; if there is nothing,
//    the plan of the lower rung does. Where the plan needs less than the rung, the rung is lowered
//    to what it needs.
//  - the bottom, where a search finds nothing and there is no lower rung: what needs least, of all
//    that a search without memory tries. It is the lower rung from then on; below it nothing fits.
//
// The half that the limit lies in is halved again, until limits or times of both ends are nearly
// the same; the plan of the lower end is the answer. Every rung is a function of the problem alone,
// and its plan says what it takes of a device at most (Strategy::memory_cap), so that under every
// larger limit it is the same step. For two limits the walks part at some rung, and there the plan
// for the smaller one takes at least, the plan for the larger one at most its time. About seven
// searches where memory is short, one where it is not.
//
// What is faster than the plan of the rung above is set aside: it would have to be known there.
#pragma once

#include <functional>

#include "windlass/search/book/ledger.h"

namespace windlass {

// Whether all devices have the same limit, and prices are not measured: those differ from run to
// run, and are worth measuring inside of the limits alone.
bool suits_ladder(const Problem& problem);

// Where a search stands on the ladder.
struct RungPlace {
  int before = 0;      // searches that were made already; the first one is without limits
  bool packs = false;  // whether a plan beside it is packs of layers
  bool alike = false;  // whether both plans beside it have one structure
  bool least = false;  // whether it looks for what needs least
  bool fits = false;   // whether a plan with fewer bytes is known
};

// Fills a book of a rung; limits are those of the book's machine. Sets the effort
// (SearchOptions::effort) that the book's methods then see.
using SearchRung = std::function<void(Ledger& ledger, const RungPlace& place, double& effort)>;

// Throws as consider_starts() does.
SearchResult search_ladder(const Problem& problem, const SearchOptions& options,
                           const SearchRung& search);

}  // namespace windlass
