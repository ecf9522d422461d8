// `windlass calibrate`: what kernels really take on this host, as a machine file for other verbs.

#include "windlass/run/calibrate.h"

#include <array>
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/atomic_file.h"
#include "windlass/base/table.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/interrupt.h"
#include "windlass/cli/machine_flags.h"
#include "windlass/cli/model_flags.h"
#include "windlass/cli/number_in.h"
#include "windlass/cli/pricing.h"
#include "windlass/cli/progress.h"
#include "windlass/machine/write_machine.h"
#include "windlass/report/json.h"

namespace windlass {
namespace {

struct CalibrateFlags {
  std::string output, model;
  std::optional<int64_t> batch, sequence, image;
  std::string memory, link_bandwidth;
  int64_t devices = 1;
  int threads = 0, repeats = 3;
  double seconds = 90;
  bool json = false;
};

struct DesignedNetwork {
  const char* source;
  int64_t batch, sequence, image;
};

// Transformers, with and without fused attention's mask, and convolutions, each small, middling and
// large: the shapes between them are those of most networks.
constexpr std::array<DesignedNetwork, 6> kDesigned = {{
    {"gpt2:layers=1,hidden=64,heads=2,vocab=256", 2, 32, 0},
    {"gpt2:layers=1,hidden=256,heads=4,vocab=1000", 4, 64, 0},
    {"bert-base:layers=1,hidden=512,heads=8,vocab=2000", 8, 64, 0},
    {"resnet-18:classes=10", 1, 0, 32},
    {"resnet-18:classes=10", 4, 0, 64},
    {"mobilenet-v2:classes=10", 2, 0, 32},
}};

TrainingGraph network_of(const ModelRequest& request) {
  return differentiate(load_model(request).graph, {});
}

std::vector<TrainingGraph> networks_of(const CalibrateFlags& flags) {
  std::vector<TrainingGraph> networks;
  if (!flags.model.empty()) {
    ModelRequest request;
    request.source = flags.model;
    request.batch = flags.batch;
    request.sequence = flags.sequence;
    request.image = flags.image;
    networks.push_back(network_of(request));
    return networks;
  }
  for (const DesignedNetwork& designed : kDesigned) {
    ModelRequest request;
    request.source = designed.source;
    request.batch = designed.batch;
    if (designed.sequence > 0) request.sequence = designed.sequence;
    if (designed.image > 0) request.image = designed.image;
    networks.push_back(network_of(request));
  }
  return networks;
}

nlohmann::ordered_json to_json(const CalibrationResult& result, const Machine& machine) {
  return {{"kernels", result.kernels.size()},
          {"rounds", result.rounds},
          {"seconds", result.spent.value},
          {"machine", machine_json(machine)}};
}

std::string to_text(const CalibrationResult& result) {
  std::string text =
      fmt::format("{} kernels, {} round{}, {}\n", result.kernels.size(), result.rounds,
                  result.rounds == 1 ? "" : "s", format_seconds(result.spent));
  Table table({Align::Left, Align::Right, Align::Right, Align::Right});
  table.add({"family", "analytic", "measured", "four fifths of them"});
  for (const auto& [family, points] : result.calibration.families)
    for (const KernelRatio& point : points)
      table.add({family, format_seconds(point.analytic),
                 format_seconds(point.analytic * point.ratio),
                 fmt::format("{} to {}", format_seconds(point.analytic * point.low),
                             format_seconds(point.analytic * point.high))});
  text += table.text("  ");
  const Calibration& calibration = result.calibration;
  if (!calibration.copies.empty()) {
    Table copies({Align::Right, Align::Right, Align::Right, Align::Left});
    copies.add({"copy of", "takes", "bytes a second", "four fifths of them"});
    for (const CopyTime& copy : calibration.copies)
      copies.add({format_bytes(copy.bytes), format_seconds(copy.time),
                  format_bandwidth(
                      BytesPerSecond(static_cast<double>(copy.bytes.value) / copy.time.value)),
                  fmt::format("{} to {}", format_seconds(copy.low), format_seconds(copy.high))});
    const CopyLine line = line_of(calibration.copies);
    text += fmt::format("copies to host memory: {} and {}\n", format_seconds(line.latency),
                        format_bandwidth(line.bandwidth)) +
            copies.text("  ");
  }
  text += fmt::format("an op takes at least {}\n", format_seconds(result.op_time));
  std::string held;
  for (const auto& [family, share] : calibration.workspace)
    if (share > 0) held += fmt::format("{}{} {:.2f}", held.empty() ? "" : ", ", family, share);
  if (!held.empty())
    text += fmt::format("workspace, as times the operands of a kernel: {}\n", held);
  return text +
         fmt::format(
             "kernels take {:.2f} times as long beside another device, {:.2f} beside copies, "
             "{:.2f} beside updates on the host\n",
             calibration.beside_devices, calibration.beside_copies, calibration.beside_updates);
}

ExitCode run_calibrate(const CalibrateFlags& flags) {
  if (flags.model.empty() && (flags.batch || flags.sequence || flags.image))
    fail_input("--batch, --seq and --image are of the model: name it with --for");
  MachineFlags named;
  named.machine = "local";
  named.devices = flags.devices;
  named.memory = flags.memory;
  named.link_bandwidth = flags.link_bandwidth;
  named.threads =
      flags.threads > 0 ? flags.threads : default_threads(static_cast<size_t>(flags.devices));
  Machine machine = named.load();
  const std::vector<TrainingGraph> networks = networks_of(flags);
  const InterruptScope interrupts;
  Progress progress("calibrating");
  CalibrationRequest request = {
      .networks = {},
      .device = machine.device_types[0],
      .threads = named.threads,
      .devices = static_cast<int>(flags.devices),
      .repeats = flags.repeats,
      .most_seconds = flags.seconds,
      .copy = {},
      .stop = [] { return InterruptScope::interrupted(); },
      .progress = [&](double part) { progress.show(Progress::bar(part) + " calibrating"); }};
  for (const TrainingGraph& network : networks) request.networks.push_back(&network);
  // A link that was asked for, or copies by all threads of the device, stay as the machine has
  // them.
  const Seconds handoff = machine.links.front().latency;
  if (flags.link_bandwidth.empty() && !machine.device_types[0].copies_itself)
    request.copy = [handoff, timer = std::make_shared<CopyTimer>()](Bytes bytes) {
      return timer->time(bytes) + handoff;
    };
  const CalibrationResult result = calibrate(open_runtime(), request);
  if (InterruptScope::interrupted()) fail_input("calibration was interrupted; nothing is written");
  machine.name = kCalibrated;
  machine.description += fmt::format(", calibrated with {} thread{} a device", named.threads,
                                     named.threads == 1 ? "" : "s");
  machine.device_types[0].source += "; kernels calibrated";
  machine.device_types[0] = calibrated_type(machine.device_types[0], result);
  if (!result.calibration.copies.empty()) {
    const CopyLine line = line_of(result.calibration.copies);
    for (const Device& device : machine.devices)
      for (Link& link : machine.links)
        if (link.a == device.endpoint) {
          link.bandwidth = line.bandwidth;
          link.latency = line.latency;
        }
  }
  if (!flags.output.empty()) {
    AtomicFile file(flags.output);
    file.write(machine_to_json(machine));
    file.commit();
  }
  fmt::print("{}", flags.json ? json_text(to_json(result, machine)) : to_text(result));
  return ExitCode::Done;
}

}  // namespace

void add_calibrate(CLI::App& program, ExitCode& exit_code) {
  CLI::App* verb = program.add_subcommand(
      "calibrate", "Measure this host's kernels, for predictions with a range of their own.");
  auto flags = std::make_shared<CalibrateFlags>();
  verb->add_option("-o,--output", flags->output, "write the machine file, which --on takes")
      ->type_name("FILE");
  verb->add_option("--for", flags->model,
                   "measure the kernels of this model, instead of a designed set")
      ->type_name("MODEL");
  verb->add_option("--batch", flags->batch, "of the model: samples")->check(positive_number());
  verb->add_option("--seq", flags->sequence, "of the model: tokens per sample")
      ->check(positive_number());
  verb->add_option("--image", flags->image, "of the model: height and width in pixels")
      ->check(positive_number());
  verb->add_option("--devices", flags->devices, "CPU devices that this host is taken as")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{256}));
  verb->add_option("--memory", flags->memory, "limit of each device");
  verb->add_option("--link-bandwidth", flags->link_bandwidth,
                   "of each device's link to host memory (default: measured)");
  verb->add_option("--threads", flags->threads, "that kernels use (default: all cores)")
      ->check(positive_number());
  verb->add_option("--repeats", flags->repeats, "rounds over all kernels")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  verb->add_option("--seconds", flags->seconds, "no round begins later than that")
      ->capture_default_str()
      ->check(number_in(0, 1e6));
  verb->add_flag("--json", flags->json, "print for programs: the machine with its calibration");
  verb->footer(
      "Kernels of a designed set of networks are timed forward and backward, beside updates of "
      "weights\n"
      "and compression, in rounds; by family and size the median counts, and the range of four "
      "fifths of\n"
      "them is kept. The file is a machine file (docs/machine_format.md): verbs that predict take "
      "it "
      "with\n"
      "--on and print a range for the step.\n"
      "Examples:\n"
      "  windlass calibrate -o here.json\n"
      "  windlass simulate gpt2 --batch 4 --on here.json --strategy single\n"
      "  windlass calibrate --for resnet-50 --batch 8 --image 64 -o resnet.json --json");
  verb->callback([flags, &exit_code] { exit_code = run_calibrate(*flags); });
}

}  // namespace windlass
