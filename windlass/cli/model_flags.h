// Flags that every verb with a MODEL shares.
#pragma once

#include <string>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/model/model.h"

namespace CLI {
class App;
}

namespace windlass {

enum class BatchChoice : uint8_t { Given, Largest, Fastest };

// Raw values of the flags, to be turned into options after parsing.
struct ModelFlags {
  std::string model;
  int64_t batch = 0;
  BatchChoice batch_choice = BatchChoice::Given;  // --batch max, auto
  int64_t sequence = 0;
  int64_t image = 0;
  std::vector<std::string> dimensions;
  std::string loss;
  std::string dtype;
  std::string gradient_dtype;
  std::string optimizer = "adam";
  bool no_fuse = false;
  bool as_exported = false;
  std::vector<std::string> freeze, train;
  std::vector<std::string> given;  // names of the flags that were

  void add_to(CLI::App& verb);

  // A plan says all of this itself. Throws Error{Input} if one of the flags was given beside the
  // plan.
  void refuse_beside_plan() const;

  // Throw Error{Input} naming the flag.
  ModelOptions model_options() const;
  TrainingOptions training_options() const;
};

}  // namespace windlass
