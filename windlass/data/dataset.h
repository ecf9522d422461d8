// Training data: samples as plain arrays, one for each input of a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace windlass {

enum class SlotKind : uint8_t {
  Tokens,      // token ids [sequence], or any number of axes read as one sequence
  NextTokens,  // for each of them the token that follows
  Image,       // [channels, height, width], or as many values in one axis
  Label,       // class of the image, a single number
  Float,       // any shape: standard normal, or uniform in [0, bound) if there is a bound
  Integer,     // any shape: uniform in its range, or 1 if that is not known, as masks are
  Positions,   // any shape: the place along the last axis
};

// What one input of a model needs of each sample. Image and Float slots hold floats, the others
// 64-bit integers.
struct SlotSpec {
  SlotKind kind = SlotKind::Tokens;
  std::vector<int64_t> shape = {};      // of one sample, without a batch axis
  int64_t bound = 0;                    // vocabulary, classes or range; 0: not known, not checked
  int64_t least = 0;                    // integers from here on, below the bound
  std::optional<int64_t> ignored = {};  // allowed beside them: a label that the loss leaves out
  bool strict = true;                   // numbers outside are errors, not merely of no use
};

// Whether an integer may stand in the slot.
bool slot_takes(const SlotSpec& slot, int64_t value);

// What files of text and images give to Integer and Positions slots, which are not in them: zeros
// for a few kinds (the segments of a text), ones for masks, places. False if it would be a guess,
// which depends on the slot alone.
bool fill_beside_data(const SlotSpec& slot, std::span<int64_t> out);

// Values of one sample in a slot. Throws Error{Input} if dimensions are negative or overflow.
int64_t slot_elements(const SlotSpec& slot);

enum class DataPart : uint8_t {
  All,
  Train,  // without what Eval has
  Eval,   // the test files of a folder if there are any, else the last part of the data
};

struct DatasetOptions {
  int token_bytes = 2;             // of .bin files: 2 or 4, little-endian
  int64_t stride = 0;              // tokens from one sample to the next; 0: a whole sequence
  std::vector<double> mean = {0};  // of pixels between 0 and 1, for all channels or for each
  std::vector<double> deviation = {1};
  DataPart part = DataPart::All;
  double eval_fraction = 0.1;          // where there are no test files; above 0, below 1
  uint64_t seed = 0;                   // synthetic data
  int64_t samples = int64_t{1} << 20;  // synthetic data
};

// Samples 0 to size() - 1. Files are mapped, not read: a sample costs what it touches. Everything
// is const and may be called from several threads. A mapped file must not be cut off by others.
class Dataset {
 public:
  explicit Dataset(std::vector<SlotSpec> slots) : slots_(std::move(slots)) {}
  virtual ~Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  virtual int64_t size() const = 0;
  // "text, 81,234 tokens, 1,269 samples": for people.
  virtual std::string describe() const = 0;
  const std::vector<SlotSpec>& slots() const { return slots_; }

  // Writes one sample's values of a slot, row-major; `out` has slot_elements() places. Throws
  // Error{Input} naming file and position if a token or label is not below the slot's bound.
  void fill(int64_t sample, size_t slot, std::span<float> out) const;
  void fill(int64_t sample, size_t slot, std::span<int64_t> out) const;

 protected:
  virtual void fill_floats(int64_t sample, const SlotSpec& slot, size_t index,
                           std::span<float> out) const = 0;
  virtual void fill_integers(int64_t sample, const SlotSpec& slot, size_t index,
                             std::span<int64_t> out) const = 0;

 private:
  std::vector<SlotSpec> slots_;
};

// Opens what `spec` names:
//  - "synthetic": random values, the same for the same seed;
//  - a folder with MNIST's or CIFAR-10's files under their own names;
//  - an IDX file of images (its name has "idx3" in it), with its labels beside it;
//  - data_batch_*.bin or test_batch.bin: CIFAR-10;
//  - another .bin file: token ids as nanoGPT writes them;
//  - any other file: text, of which each byte is a token.
// Throws Error{Input}, beginning with the file, if it is not what it should be, holds too little
// for one sample or not what the slots need.
std::unique_ptr<Dataset> open_dataset(const std::string& spec, std::vector<SlotSpec> slots,
                                      const DatasetOptions& options = {});

}  // namespace windlass
