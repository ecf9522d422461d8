// Searches for several devices of this host: what they find is measured, and what was measured
// guides the next one.
#pragma once

#include "windlass/plan/step.h"
#include "windlass/search/search.h"

namespace windlass {

struct MeasuredResult {
  SearchResult search;
  SimulatedStep step;  // of its strategy, by measured kernels, limits enforced
  bool fits = false;
};

// To measure the kernels of all the pieces that a search over several devices, or of parts of the
// batch, tries would take longer than most trainings. So it goes by the figures of the host first,
// and what it finds is measured; then by what kernels like those were measured to take, as long as
// that finds better plans. Where what it finds takes more memory than was thought, the search has
// less the next time: by what was missing where it ended, though not by more than a part at a time,
// since what is asked for first may be far more than what is needed. With `usual`, strategies that
// users would try are measured as well if they may be as fast, or if nothing else fits.
//
// `problem` has the machine by its figures, and `reprice`, which measures.
MeasuredResult search_then_measure(const SearchMethod& method, const Problem& problem,
                                   const SearchOptions& options, bool usual);

}  // namespace windlass
