#include "windlass/machine/read_calibration.h"

#include "windlass/base/error.h"
#include "windlass/base/text.h"

namespace windlass {

namespace {

std::vector<CopyTime> read_copies(JsonObject& object) {
  constexpr size_t kMostCopies = 256;
  std::vector<CopyTime> copies;
  for (JsonObject& entry : object.objects("copies")) {
    CopyTime copy;
    copy.bytes = entry.bytes("bytes");
    copy.time = entry.seconds("time", Seconds(0));
    copy.low = entry.seconds("low", copy.time);
    copy.high = entry.seconds("high", copy.time);
    entry.finish();
    if (!(copy.low.value > 0 && copy.low <= copy.time && copy.time <= copy.high &&
          copy.high.value < 1e6))
      fail_input("{}: expected \"low\" above 0, then \"time\", then \"high\"", entry.where());
    if (copy.bytes.value < 1 || (!copies.empty() && copy.bytes <= copies.back().bytes))
      fail_input("{}: larger copies come later", entry.where());
    copies.push_back(copy);
    if (copies.size() > kMostCopies)
      fail_input("{}: more than {} copies", object.where(), kMostCopies);
  }
  return copies;
}

}  // namespace

Calibration read_calibration(JsonObject object) {
  constexpr double kMostRatio = 1e4;
  constexpr size_t kMostFamilies = 64, kMostPoints = 256;
  Calibration calibration;
  calibration.beside_devices = object.number("beside_devices", 1, 1, kMostRatio);
  calibration.beside_copies = object.number("beside_copies", 1, 1, kMostRatio);
  calibration.beside_updates = object.number("beside_updates", 1, 1, kMostRatio);
  auto families = object.object("families");
  if (!families) fail_input("{}: \"families\" is missing", object.where());
  for (const std::string& name : families->keys()) {
    std::vector<KernelRatio>& points = calibration.families[name];
    for (JsonObject& entry : families->objects(name)) {
      KernelRatio point;
      point.analytic = entry.seconds("analytic", Seconds(0));
      point.ratio = entry.number("ratio", 1, 1 / kMostRatio, kMostRatio);
      point.low = entry.number("low", point.ratio, 1 / kMostRatio, point.ratio);
      point.high = entry.number("high", point.ratio, point.ratio, kMostRatio);
      entry.finish();
      if (!(point.analytic.value > 0 && point.analytic.value < 1e6))
        fail_input("{}: \"analytic\" is {} s, expected above 0", entry.where(),
                   point.analytic.value);
      if (!points.empty() &&
          (point.analytic <= points.back().analytic ||
           point.analytic * point.ratio < points.back().analytic * points.back().ratio))
        fail_input("{}: larger kernels come later, and take no less than those before",
                   entry.where());
      points.push_back(point);
    }
    if (points.empty() || points.size() > kMostPoints ||
        calibration.families.size() > kMostFamilies)
      fail_input("{}: \"{}\" has {} sizes of {} families, expected 1 to {} of at most {}",
                 families->where(), printable(name, 60), points.size(), calibration.families.size(),
                 kMostPoints, kMostFamilies);
  }
  families->finish();
  if (auto shares = object.object("workspace")) {
    for (const std::string& name : shares->keys())
      calibration.workspace[name] = shares->number(name, 0, 0, kMostRatio);
    if (calibration.workspace.size() > kMostFamilies)
      fail_input("{}: more than {} families", shares->where(), kMostFamilies);
    shares->finish();
  }
  if (object.has("copies")) calibration.copies = read_copies(object);
  object.finish();
  return calibration;
}

}  // namespace windlass
