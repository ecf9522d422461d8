// Labelled images of bytes: scaled to [0, 1], then normalised.

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/base/units.h"
#include "windlass/data/formats.h"

namespace windlass {
namespace {

// Per channel: value = pixel / 255 * scale + shift.
struct Normalisation {
  std::vector<float> scale, shift;
};

Normalisation normalisation_of(const DatasetOptions& options, int64_t channels) {
  const auto spread = [&](const std::vector<double>& values, const char* what) {
    if (values.size() != 1 && static_cast<int64_t>(values.size()) != channels)
      fail_input("{} values for the {} of images with {} channels; expected one, or one for each",
                 values.size(), what, channels);
    std::vector<double> all = values;
    all.resize(static_cast<size_t>(channels), values[0]);
    return all;
  };
  const std::vector<double> mean = spread(options.mean, "mean");
  const std::vector<double> deviation = spread(options.deviation, "deviation");
  Normalisation result;
  for (size_t c = 0; c < mean.size(); ++c) {
    if (!std::isfinite(mean[c]) || !std::isfinite(deviation[c]) || deviation[c] <= 0)
      fail_input("images are normalised by ({} - mean) / deviation; mean is {}, deviation {}", "x",
                 mean[c], deviation[c]);
    result.scale.push_back(static_cast<float>(1 / (255 * deviation[c])));
    result.shift.push_back(static_cast<float>(-mean[c] / deviation[c]));
  }
  return result;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

class ImageDataset final : public Dataset {
 public:
  // All runs have images of the same size.
  ImageDataset(MappedFiles files, std::vector<ImageRun> runs, std::vector<SlotSpec> slots,
               const DatasetOptions& options)
      : Dataset(std::move(slots)),
        files_(std::move(files)),
        runs_(std::move(runs)),
        normalisation_(normalisation_of(options, runs_.at(0).channels)) {
    for (const SlotSpec& slot : this->slots()) check_slot(slot);
    int64_t count = 0;
    for (const ImageRun& run : runs_) count += run.count;
    const PartRange part = part_range(count, options);
    begin_ = part.begin;
    size_ = part.end - part.begin;
    if (size_ < 1)
      fail_input("{}: {} images, none of which is in this part", runs_[0].where, count);
  }

  int64_t size() const override { return size_; }
  std::string describe() const override {
    const ImageRun& run = runs_[0];
    return fmt::format("{}: {} images of {}x{}x{}", run.where, format_integer(size_), run.channels,
                       run.height, run.width);
  }

 protected:
  void fill_floats(int64_t sample, const SlotSpec&, size_t, std::span<float> out) const override {
    const auto [run, record] = find(sample);
    const auto plane = static_cast<size_t>(run->height * run->width);
    const auto at = static_cast<size_t>(run->pixel_offset + record * run->pixel_stride);
    for (size_t c = 0; c < static_cast<size_t>(run->channels); ++c) {
      const float scale = normalisation_.scale[c], shift = normalisation_.shift[c];
      for (size_t i = c * plane; i < (c + 1) * plane; ++i)
        out[i] = static_cast<float>(std::to_integer<int>(run->pixels[at + i])) * scale + shift;
    }
  }
  void fill_integers(int64_t sample, const SlotSpec& slot, size_t,
                     std::span<int64_t> out) const override {
    if (fill_beside_data(slot, out)) return;
    const auto [run, record] = find(sample);
    const auto at = static_cast<size_t>(run->label_offset + record * run->label_stride);
    out[0] = std::to_integer<int64_t>(run->labels[at]);
    if (slot.bound > 0 && out[0] >= slot.bound)
      fail_input("{}: record {} has label {}, but the model has {} classes", run->labels_where,
                 record, out[0], slot.bound);
  }

 private:
  void check_slot(const SlotSpec& slot) const {
    const ImageRun& run = runs_[0];
    const std::vector<int64_t> shape = {run.channels, run.height, run.width};
    const std::vector<int64_t> flat = {checked_product(shape)};
    const bool single = slot_elements(slot) == 1;
    switch (slot.kind) {
      case SlotKind::Image:
        if (slot.shape == shape || slot.shape == flat) return;
        fail_input(
            "{}: images are {}, the model takes {}; images are not resized: build the model for "
            "this size",
            run.where, shape_text(shape), shape_text(slot.shape));
      case SlotKind::Label:
        if (single) return;
        fail_input("{}: one label an image, the model takes {}", run.where, shape_text(slot.shape));
      default: break;
    }
    if (fill_beside_data(slot, {})) return;
    fail_input(
        "{}: holds images with labels, but the model takes something else, too; give it tokens, a "
        ".safetensors file with a tensor for each input, or synthetic data",
        run.where);
  }

  std::pair<const ImageRun*, int64_t> find(int64_t sample) const {
    int64_t index = begin_ + sample;
    for (const ImageRun& run : runs_) {
      if (index < run.count) return {&run, index};
      index -= run.count;
    }
    throw Error(ErrorKind::Internal, "internal error: a sample beyond the last image");
  }

  MappedFiles files_;
  std::vector<ImageRun> runs_;
  Normalisation normalisation_;
  int64_t begin_ = 0, size_ = 0;
};

}  // namespace

std::unique_ptr<Dataset> image_dataset(MappedFiles files, std::vector<ImageRun> runs,
                                       std::vector<SlotSpec> slots, const DatasetOptions& options) {
  ensure(!runs.empty(), "a data set without images");
  return std::make_unique<ImageDataset>(std::move(files), std::move(runs), std::move(slots),
                                        options);
}

}  // namespace windlass
