// Work: what a piece of an op asks of one device, apart from any graph. A CostModel prices it.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/graph/op_info.h"
#include "windlass/machine/machine.h"

namespace windlass {

// A kernel that a device runs without interruption. A contraction is a batch of products
// [m, k] x [k, n]; anything else has multiply_adds = 0 and is priced by its bytes. Fused attention
// has m queries, n keys, depth k and one product of the batch a head; pairs that a causal or
// windowed kernel leaves out are not in its multiply_adds.
struct Kernel {
  OpFamily family = OpFamily::Elementwise;
  Precision precision = Precision::Fp32;  // of the arithmetic
  int64_t batch = 1;
  int64_t m = 0, n = 0, k = 0;
  double multiply_adds = 0;
  double pointwise = 0;  // scalar operations beside the multiply-adds
  Bytes read;
  Bytes written;
  int32_t launches = 1;  // of the same size; m, n, k are of one, the totals above of all of them
  Bytes scratch;         // that the algorithm keeps beside its operands
  Bytes blocked;  // of a convolution: copies of operands in the layout that a CPU's library wants
  bool cast = false;         // a conversion of types, which a framework issues on the way
  bool compression = false;  // of a saved tensor, or back
  bool grouped = false;      // a convolution in groups, of which `batch` are in this piece
  bool winograd = false;  // a dense 3 x 3 convolution of stride 1: fewer multiplications would do

  bool operator==(const Kernel&) const = default;
};

// The kernels of one piece of an op, run one after the other.
struct Work {
  std::vector<Kernel> kernels;

  bool operator==(const Work&) const = default;
};

// Arithmetic that tensors of a type are multiplied in.
Precision precision_of(DType dtype);

// What each of the split loops of an op is cut into, on the device with the largest piece: local
// sizes, parallel to LoopNest::loops.
using LocalSizes = std::vector<int64_t>;

// Of loops that are cut, into how many runs each is read first, as in Split::blocks; empty: pieces
// are taken to have equally much to do, wherever they lie.
using LoopBlocks = std::vector<int64_t>;

// Work of a piece of an op of a graph, whichever its pass. `local` are the loop sizes of the piece.
// Where pieces of one size differ in what they have to do (later queries of causal attention see
// more keys), of the one that has most, if `blocks` are given.
// Forward: one kernel, recurrent layers excepted. Backward: one kernel for each wanted gradient of
// a contraction. None for views, for empty pieces and where no gradient is computed.
Work work_of(const Graph& graph, const Op& op, const LoopNest& nest, const LocalSizes& local,
             const LoopBlocks& blocks = {});

// Work of a piece of a coupled op (graph/coupled.h) in steps: begin makes so many bytes of
// statistics, end makes the results. Kernels that look at their operands twice anyway (batch norm,
// group norm) are cut in two; for the others there is one more pass over the operands.
struct CoupledWork {
  Work begin, end;
};
CoupledWork coupled_work_of(const Graph& graph, const Op& op, const LoopNest& nest,
                            const LocalSizes& local, Bytes statistics,
                            const LoopBlocks& blocks = {});

// Work of updating `elements` weights at once, as optimizers that treat all weights in one launch
// do. Reads gradient, master (else weight) and fp32 states; writes all but the gradient.
Work update_work(OptimizerKind optimizer, double elements, DType weight, DType gradient,
                 bool master);

// Work of reading and writing so many bytes: packing, casting.
Work memory_work(Bytes read, Bytes written);

// Work of storing so many elements in fewer bits, and of getting them back. One pass each, in which
// a group's elements stay in registers; rounding draws a random number for each element.
Work compression_work(int64_t elements, Bytes plain, Bytes packed);
Work decompression_work(int64_t elements, Bytes packed, Bytes plain);

}  // namespace windlass
