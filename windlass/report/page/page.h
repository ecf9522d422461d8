// A plan as one page: HTML with everything in it, for any browser, without a network.
//
// The page is made of the files of this folder that the program carries with it (cmake/Page.cmake)
// and of data as JSON. What comes out of plan files, models and runs is data: the page shows it as
// text and never as markup.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "windlass/plan/degrees.h"
#include "windlass/plan/method_advice.h"
#include "windlass/plan/plan.h"
#include "windlass/report/page/page_timeline.h"
#include "windlass/report/simulation.h"
#include "windlass/report/strategy_table.h"

namespace windlass {

// A plan with what was found out about it. All of it outlives the page's making.
struct PagePlan {
  std::string path;  // of the plan file
  const Plan& plan;
  const Graph& network;  // of the whole batch
  const TrainingGraph& training;
  const Strategy& strategy;
  const Machine& machine;
  const SimulatedStep& step;
  const SimulationReport& report;
  std::vector<StrategyRow> baselines = {};    // what a user would have done
  std::string no_baselines = {};              // why there are none
  std::optional<MethodsReport> methods = {};  // throughput against batch by memory method
  std::string no_methods = {};                // why there are none
};

struct PageOptions {
  PageTimelineOptions timeline = {};
  int64_t memory_points = 480;  // of a curve of a memory; fewer where there are many memories
};

// One sentence: does it fit, how fast, how full, and against what.
std::string page_verdict(const PagePlan& plan, const Degrees& degrees);

// Everything that the page shows of a plan.
nlohmann::ordered_json page_plan_json(const PagePlan& plan, const PageOptions& options = {});

// What `windlass train --json` wrote: {steps: [[step, loss, seconds]...], predicted, measured}.
// Safe on any bytes. Throws Error{Input} beginning with `where` if it is not that.
nlohmann::ordered_json page_run_json(std::string_view text, const std::string& where);

// The page: for one plan, or two side by side, with a run of the first if there is one.
std::string page_html(const nlohmann::ordered_json& plans,
                      const std::optional<nlohmann::ordered_json>& run);

// The page of "windlass serve": the same charts beside controls; `data` is what they offer.
std::string what_if_html(const nlohmann::ordered_json& data);

// Text that stands for itself between tags and in attributes.
std::string escape_html(std::string_view text);
// JSON that cannot end the script element it stands in.
std::string script_json(const nlohmann::ordered_json& json);

// The files that the program carries with it, by name.
struct PageFile {
  std::string_view name, text;
};
std::vector<PageFile> page_files();

}  // namespace windlass
