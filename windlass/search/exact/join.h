// The inner loop of elimination: tables added along their common variables and minimised over one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace windlass {

// result[i] = min(result[i], base + row[i]).
void lower_row(double* result, const double* row, double base, int64_t count);

// A table and which axes of the joint scope its own axes are, outermost first.
struct JoinTerm {
  const double* cells = nullptr;
  std::vector<int32_t> axes;
};

// Over joint axes 0 .. n-1, n >= 2, the result has a cell for each choice of the axes 1 .. n-1,
// row-major in their order: the minimum over axis 0 of the sum of all terms. Every term has axis 0,
// at least one the last axis.
struct Join {
  std::vector<int64_t> sizes;
  std::vector<JoinTerm> terms;

  int64_t outer() const;  // choices of the axes between the first and the last
  int64_t inner() const { return sizes.back(); }
  // Brings terms into the form that the loop wants. Once, before run().
  void prepare();
  // Rows [begin, end) of outer() of the result, so that threads can share the work; `result` is the
  // whole array.
  void run(int64_t begin, int64_t end, double* result) const;

 private:
  struct Prepared {
    const double* cells = nullptr;
    bool inner = false;            // has the last axis, at stride 1
    int64_t own = 0;               // stride of axis 0
    std::vector<int64_t> strides;  // of the axes between
  };
  std::vector<Prepared> prepared_;
  std::vector<std::vector<double>> copies_;
};

}  // namespace windlass
