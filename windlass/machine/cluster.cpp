#include "windlass/machine/cluster.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/machine/local.h"
#include "windlass/machine/read_machine.h"
#include "windlass/machine/write_machine.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

// Rates of equal hosts differ by so much from one time to the next.
constexpr double kAlikeRates = 7.0 / 6, kAlikeConnections = 1.25;

bool within(double a, double b, double factor) { return a <= b * factor && b <= a * factor; }

// Counts and words are equal, other numbers are about the same.
bool alike(const ordered_json& a, const ordered_json& b, const std::string& key = {}) {
  if (a.is_number() && b.is_number() && key != "count")
    return within(a.get<double>(), b.get<double>(), kAlikeRates);
  if (a.type() != b.type() || a.size() != b.size()) return false;
  if (a.is_object()) {
    for (const auto& [name, value] : a.items())
      if (!b.contains(name) || !alike(value, b[name], name)) return false;
    return true;
  }
  if (!a.is_array()) return a == b;
  for (size_t i = 0; i < a.size(); ++i)
    if (!alike(a[i], b[i], key)) return false;
  return true;
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Of several that are alike: what nobody has less of in memory, and what most have else.
ordered_json merged(const std::vector<const ordered_json*>& all, const std::string& key = {}) {
  ordered_json result = *all.front();
  const auto of_all = [&](const auto& pick) {
    std::vector<const ordered_json*> parts;
    for (const ordered_json* one : all) parts.push_back(&pick(*one));
    return parts;
  };
  if (result.is_number_integer() && (key == "memory" || key == "limit" || key == "reserved")) {
    for (const ordered_json* one : all)
      if ((one->get<int64_t>() < result.get<int64_t>()) == (key != "reserved")) result = *one;
  } else if (result.is_number() && key != "count") {
    std::vector<double> values;
    for (const ordered_json* one : all) values.push_back(one->get<double>());
    result = median_of(std::move(values));
  } else if (result.is_object()) {
    for (auto& [name, value] : result.items()) {
      const std::string& at = name;
      value = merged(
          of_all([&at](const ordered_json& one) -> const ordered_json& { return one.at(at); }), at);
    }
  } else if (result.is_array()) {
    for (size_t i = 0; i < result.size(); ++i)
      result[i] = merged(
          of_all([i](const ordered_json& one) -> const ordered_json& { return one.at(i); }), key);
  }
  return result;
}

// What a file says of a host: its node, and the types of its devices.
ordered_json host_json(const Machine& machine) {
  const ordered_json whole = machine_json(machine);
  return {{"device_types", whole.at("device_types")}, {"node", whole.at("nodes").at(0)}};
}

// The types of a kind of hosts under names of their own.
void add_kind(ordered_json& kind, size_t number, ordered_json& types) {
  const auto own_name = [number](const std::string& name) {
    return number == 0 ? name : fmt::format("{}-{}", name, number + 1);
  };
  for (const auto& [name, type] : kind["device_types"].items()) types[own_name(name)] = type;
  for (ordered_json& device : kind["node"]["devices"])
    device["type"] = own_name(device["type"].get<std::string>());
}

// Figures of connections: what most have stands for all that are near it.
void settle(std::vector<double>& values) {
  const double usual = median_of(values);
  for (double& value : values)
    if (within(value, usual, kAlikeConnections)) value = usual;
}

}  // namespace

bool of_cpu_hosts(const Machine& machine) {
  return machine.name == kLocalName || machine.name == kClusterName;
}

size_t most_devices_of_a_node(const Machine& machine) {
  std::vector<size_t> by_node(machine.nodes.size(), 0);
  for (const Device& device : machine.devices) ++by_node[device.node.index()];
  return *std::ranges::max_element(by_node);
}

Machine cluster_machine(const std::vector<ClusterHost>& hosts, const std::string& source) {
  if (hosts.size() < 2) fail_input("a cluster: {} host, expected several", hosts.size());
  std::vector<ordered_json> found;
  for (const ClusterHost& host : hosts) found.push_back(host_json(host.machine));
  std::vector<std::vector<size_t>> kinds;
  for (size_t i = 0; i < found.size(); ++i) {
    const auto kind = std::ranges::find_if(
        kinds, [&](const std::vector<size_t>& known) { return alike(found[known[0]], found[i]); });
    if (kind == kinds.end())
      kinds.push_back({i});
    else
      kind->push_back(i);
  }

  ordered_json types = ordered_json::object();
  std::vector<ordered_json> nodes(hosts.size());
  std::string description;
  for (size_t k = 0; k < kinds.size(); ++k) {
    std::vector<const ordered_json*> all;
    for (size_t i : kinds[k]) all.push_back(&found[i]);
    ordered_json kind = merged(all);
    add_kind(kind, k, types);
    for (size_t i : kinds[k]) nodes[i] = kind["node"];
    const ClusterHost& first = hosts[kinds[k][0]];
    description += fmt::format("{}{} as {} ({})", k == 0 ? "" : "; ", kinds[k].size(), first.name,
                               first.machine.description);
  }

  std::vector<double> bandwidths, latencies;
  for (const ClusterHost& host : hosts) {
    bandwidths.push_back(host.bandwidth.value);
    latencies.push_back(host.latency.value);
  }
  settle(bandwidths);
  settle(latencies);
  // A message passes the connections of both hosts.
  const auto connection = [&](double bandwidth, double latency) {
    return ordered_json{{"bandwidth", bandwidth}, {"latency", latency / 2}};
  };
  ordered_json network = connection(median_of(bandwidths), median_of(latencies));
  for (size_t i = 0; i < hosts.size(); ++i) {
    const ordered_json own = connection(bandwidths[i], latencies[i]);
    if (own != network) nodes[i]["network"] = own;
  }
  network["per"] = "node";
  const bool cpus = std::ranges::all_of(
      hosts, [](const ClusterHost& host) { return of_cpu_hosts(host.machine); });
  const ordered_json json = {{"name", cpus ? kClusterName : "cluster-of-cards"},
                             {"description", description + "; network: " + source},
                             {"device_types", types},
                             {"nodes", nodes},
                             {"network", network}};
  return machine_from_json(json.dump(), kClusterName);
}

}  // namespace windlass
