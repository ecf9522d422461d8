// Kernels of the pieces of an op against the interpreter on the same pieces, for the tests.
#pragma once

#include <functional>
#include <vector>

#include "windlass/graph/coupled.h"
#include "windlass/graph/reference/pieces.h"
#include "windlass/graph/reference/random_cuts.h"
#include "windlass/runtime/kernels/kernel_cases.h"

namespace windlass {

class PieceKernels {
 public:
  // `dtype` is that of the case's floats.
  PieceKernels(const reference::Subject& subject, const std::vector<reference::Cut>& cuts,
               DType dtype);

  // Begin, merge and end; outputs, auxiliaries, and what is written over.
  void check_forward(Rng& rng);
  // The same of some of the gradients, for some of the output gradients: fresh results and sums.
  void check_backward(Rng& rng);

 private:
  // An operand of a piece as the interpreter and as the kernel sees it; empty if it is absent.
  struct Local {
    Array array;
    at::Tensor tensor;
  };
  // Statistics of each member before the merge, then of all.
  struct Statistics {
    std::vector<Array> arrays;
    Tensors tensors;
    bool exchanged() const { return !arrays.empty(); }
  };

  static Local cut(const Array& whole, const TensorType& type, const Region& region);
  void count_labels(Rng& rng);
  // What every member has after an exchange; nothing if there is none. `begin` makes the statistics
  // of a member both ways, which are compared.
  Statistics exchange(Pass pass, const std::vector<bool>& wanted,
                      const std::function<Local(size_t)>& begin) const;
  void check_member_forward(size_t m, const Op& op, const std::vector<Local>& inputs,
                            const Statistics& statistics, bool again) const;
  const Array& saved_array(const SavedRef& ref) const;

  const reference::Subject& s_;
  const std::vector<reference::Cut>& cuts_;
  std::vector<reference::CutPiece> members_;
  DType dtype_;
};

}  // namespace windlass
