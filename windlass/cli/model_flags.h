// Flags that every verb with a MODEL shares.
#pragma once

#include <string>
#include <vector>

#include "windlass/model/model.h"
#include "windlass/plan/plan.h"

namespace CLI {
class App;
}

namespace windlass {

enum class BatchChoice : uint8_t { Given, Largest, Fastest };

struct ModelFlags {
  ModelRequest request;  // as it was typed: see model()
  std::vector<std::string> dimensions;
  BatchChoice batch_choice = BatchChoice::Given;  // --batch max, auto
  std::vector<std::string> given;                 // names of the flags that were

  // Verbs that only predict take a runner.
  enum class Runners : uint8_t { Windlass, Any };
  void add_to(CLI::App& verb, Runners runners = Runners::Windlass);

  // A plan says all of this itself. Throws Error{Input} if one of the flags was given beside the
  // plan.
  void refuse_beside_plan() const;

  // What was asked for. Throws Error{Input} naming the flag that is wrong or leaves the batch open.
  ModelRequest model() const;

 private:
  void add_runner_to(CLI::App& verb);
};

Model load_model(const ModelRequest& request);

}  // namespace windlass
