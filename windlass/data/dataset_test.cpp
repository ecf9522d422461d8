#include "windlass/data/dataset.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "windlass/base/test_places.h"
#include "windlass/data/data_testing.h"

namespace windlass {
namespace {

using Ints = std::vector<int64_t>;

std::vector<SlotSpec> text_slots(int64_t sequence, int64_t vocabulary = 0) {
  return {{SlotKind::Tokens, {sequence}, vocabulary},
          {SlotKind::NextTokens, {sequence}, vocabulary}};
}

std::vector<SlotSpec> image_slots(Ints shape, int64_t classes = 10) {
  return {{SlotKind::Image, std::move(shape)}, {SlotKind::Label, {}, classes}};
}

using TokenData = DataFiles;
using ImageData = DataFiles;

TEST_F(TokenData, TextIsItsBytes) {
  // 11 bytes, samples of 3 + 1: starts 0, 3, 6; 9 would need 13.
  const auto data = open_dataset(write("a.txt", "hello world"), text_slots(3, 256));
  ASSERT_EQ(data->size(), 3);
  EXPECT_EQ(integers(*data, 0, 0), (Ints{'h', 'e', 'l'}));
  EXPECT_EQ(integers(*data, 0, 1), (Ints{'e', 'l', 'l'}));
  EXPECT_EQ(integers(*data, 2, 0), (Ints{'w', 'o', 'r'}));
  EXPECT_EQ(integers(*data, 2, 1), (Ints{'o', 'r', 'l'}));
  EXPECT_NE(data->describe().find("11 bytes of text in 3 samples"), std::string::npos);
}

TEST_F(TokenData, LastSampleFitsExactly) {
  EXPECT_EQ(open_dataset(write("a", "1234567"), text_slots(3))->size(), 2);
  EXPECT_EQ(open_dataset(write("b", "123456"), text_slots(3))->size(), 1);
  EXPECT_EQ(open_dataset(write("c", "123456"), {{SlotKind::Tokens, {3}}})->size(), 2);
  DatasetOptions each;
  each.stride = 1;
  EXPECT_EQ(open_dataset(write("d", "123456"), text_slots(3), each)->size(), 3);
}

TEST_F(TokenData, BinaryTokensAreLittleEndian) {
  const std::string bytes("\x01\x02\xff\xff\x00\x80\x05\x00", 8);
  const std::string path = write("a.bin", bytes);
  EXPECT_EQ(integers(*open_dataset(path, text_slots(3)), 0, 0), (Ints{0x0201, 0xffff, 0x8000}));
  DatasetOptions wide;
  wide.token_bytes = 4;
  const auto data = open_dataset(path, text_slots(1), wide);
  EXPECT_EQ(integers(*data, 0, 0), (Ints{0xffff0201}));
  EXPECT_EQ(integers(*data, 0, 1), (Ints{0x00058000}));
}

TEST_F(TokenData, PartsDoNotOverlap) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>(i);
  const std::string path = write("a.txt", text);
  DatasetOptions options;
  options.part = DataPart::Train;
  const auto train = open_dataset(path, text_slots(4), options);
  options.part = DataPart::Eval;
  const auto eval = open_dataset(path, text_slots(4), options);
  EXPECT_EQ(train->size(), 22);  // (90 - 5) / 4 + 1
  EXPECT_EQ(eval->size(), 2);    // (10 - 5) / 4 + 1
  EXPECT_EQ(integers(*train, 21, 1).back(), 88);
  EXPECT_EQ(integers(*eval, 0, 0), (Ints{90, 91, 92, 93}));
  options.eval_fraction = 1;
  expect_refused([&] { open_dataset(path, text_slots(4), options); }, "less than 1");
}

TEST_F(TokenData, ErrorsNameThePlace) {
  const std::string path = write("a.bin", std::string("\x01\x00\x09\x00\x01\x00\x01\x00", 8));
  const auto data = open_dataset(path, text_slots(2, 9));
  expect_refused([&] { integers(*data, 0, 0); },
                 path + ": token 9 at position 1 is outside the model's vocabulary of 9");
  DatasetOptions eval;
  eval.part = DataPart::Eval;
  eval.eval_fraction = 0.75;
  const auto tail = open_dataset(path, text_slots(2, 9), eval);
  expect_refused([&] { integers(*tail, 0, 0); }, "token 9 at position 1");
  expect_refused([&] { open_dataset(path, text_slots(4)); },
                 path + ": 4 tokens, one sample needs 5");
  expect_refused([&] { open_dataset(write("b.bin", "abc"), text_slots(1)); },
                 "3 bytes are no whole number of 2-byte tokens");
  expect_refused([&] { open_dataset(write("empty", ""), text_slots(1)); }, "0 tokens");
  expect_refused([&] { open_dataset(write("n.bin", "\x93NUMPY"), text_slots(1)); }, "tofile");
  expect_refused([&] { open_dataset(write("z", "\x1f\x8b\x08"), text_slots(1)); }, "gunzip");
  expect_refused([&] { open_dataset(path, image_slots({1, 2, 2})); }, "holds tokens");
  expect_refused([&] { open_dataset(path, {}); }, "no tokens");
  expect_refused([&] { open_dataset("no/such/file", text_slots(1)); }, "no such file");
  expect_refused([&] { open_dataset(folder_.string(), text_slots(1)); }, "neither MNIST");
  expect_refused([&] { open_dataset(path, text_slots(std::numeric_limits<int64_t>::max())); },
                 "overflow");
  DatasetOptions odd;
  odd.token_bytes = 3;
  expect_refused([&] { open_dataset(path, text_slots(1), odd); }, "3 bytes are not known");
}

TEST_F(TokenData, SegmentsMasksAndPositionsAreForEveryText) {
  auto slots = text_slots(2);
  slots.push_back({SlotKind::Integer, {2}, 2});
  slots.push_back({SlotKind::Integer, {2}, 0});
  slots.push_back({SlotKind::Positions, {2, 3}, 3});
  const auto data = open_dataset(write("a.txt", "abcdef"), slots);
  EXPECT_EQ(integers(*data, 0, 2), (Ints{0, 0}));
  EXPECT_EQ(integers(*data, 0, 3), (Ints{1, 1}));
  EXPECT_EQ(integers(*data, 0, 4), (Ints{0, 1, 2, 0, 1, 2}));
  slots.back().bound = 2;
  expect_refused([&] { open_dataset(write("a.txt", "abcdef"), slots); }, "something else");
  slots.back() = {SlotKind::Integer, {2}, 500};
  expect_refused([&] { open_dataset(write("a.txt", "abcdef"), slots); }, "something else");
}

// Two images of 2 x 3 with pixels 0, 1, 2, ... and labels 7 and 4.
std::string small_images() {
  std::string file = big_endian(0x803) + big_endian(2) + big_endian(2) + big_endian(3);
  for (int i = 0; i < 12; ++i) file += static_cast<char>(i);
  return file;
}
std::string small_labels() { return big_endian(0x801) + big_endian(2) + "\x07\x04"; }

TEST_F(ImageData, ReadsMnist) {
  const std::string images = write("train-images-idx3-ubyte", small_images());
  write("train-labels-idx1-ubyte", small_labels());
  DatasetOptions options;
  options.mean = {0.5};
  options.deviation = {0.25};
  for (const std::string& spec : {images, folder_.string()}) {
    const auto data = open_dataset(spec, image_slots({1, 2, 3}), options);
    ASSERT_EQ(data->size(), 2);
    const std::vector<float> second = floats(*data, 1, 0);
    for (size_t i = 0; i < 6; ++i)
      EXPECT_NEAR(second[i], (static_cast<double>(6 + i) / 255 - 0.5) / 0.25, 1e-6);
    EXPECT_EQ(integers(*data, 0, 1), (Ints{7}));
    EXPECT_EQ(integers(*data, 1, 1), (Ints{4}));
  }
  EXPECT_EQ(floats(*open_dataset(images, image_slots({6})), 0, 0).size(), 6u);
}

TEST_F(ImageData, FoldersWithTestFilesAreSplitAlready) {
  write("train-images-idx3-ubyte", small_images());
  write("train-labels-idx1-ubyte", small_labels());
  DatasetOptions options;
  options.part = DataPart::Eval;
  options.eval_fraction = 0.5;
  const auto tail = open_dataset(folder_.string(), image_slots({1, 2, 3}), options);
  EXPECT_EQ(tail->size(), 1);
  EXPECT_EQ(integers(*tail, 0, 1), (Ints{4}));
  write("t10k-images-idx3-ubyte", small_images());
  write("t10k-labels-idx1-ubyte", small_labels());
  EXPECT_EQ(open_dataset(folder_.string(), image_slots({1, 2, 3}), options)->size(), 2);
  options.part = DataPart::Train;
  EXPECT_EQ(open_dataset(folder_.string(), image_slots({1, 2, 3}), options)->size(), 2);
}

TEST_F(ImageData, RefusesDamagedMnist) {
  const std::string images = write("train-images-idx3-ubyte", small_images());
  const auto open_with = [&](const std::string& pixels, const std::string& labels) {
    write("train-images-idx3-ubyte", pixels);
    write("train-labels-idx1-ubyte", labels);
    return open_dataset(images, image_slots({1, 2, 3}));
  };
  expect_refused(
      [&] {
        open_dataset(images, image_slots({1, 2, 3}));
      },
      "train-labels-idx1-ubyte: cannot open");
  expect_refused([&] { open_with("abc", small_labels()); }, "3 bytes");
  expect_refused([&] { open_with(small_images().substr(0, 20), small_labels()); }, "cut off");
  expect_refused([&] { open_with(small_images() + "x", small_labels()); }, "announces 28");
  expect_refused([&] { open_with(small_labels() + "12345678", small_labels()); },
                 "begins with bytes 00 00 08 01");
  expect_refused([&] { open_with(small_images(), big_endian(0x801) + big_endian(1) + "x"); },
                 "2 images, but");
  const std::string huge = big_endian(0x803) + std::string(12, '\xff');
  expect_refused([&] { open_with(huge, small_labels()); }, "overflow");
  const std::string none = big_endian(0x803) + big_endian(0) + big_endian(2) + big_endian(3);
  expect_refused([&] { open_with(none, big_endian(0x801) + big_endian(0)); }, "nothing to train");
  expect_refused(
      [&] {
        open_dataset(write("x-idx3", ""), image_slots({1, 2, 3}));
      },
      "needs labels");
}

TEST_F(ImageData, ErrorsSayWhatDoesNotFit) {
  const std::string images = write("train-images-idx3-ubyte", small_images());
  write("train-labels-idx1-ubyte", small_labels());
  expect_refused(
      [&] {
        open_dataset(images, image_slots({3, 224, 224}));
      },
      "images are [1, 2, 3], the model takes [3, 224, 224]");
  expect_refused([&] { open_dataset(images, text_slots(3)); }, "holds images");
  const auto data = open_dataset(images, image_slots({1, 2, 3}, 5));
  expect_refused([&] { integers(*data, 0, 1); }, "record 0 has label 7, but the model has 5");
  DatasetOptions options;
  options.mean = {1, 2};
  expect_refused([&] { open_dataset(images, image_slots({1, 2, 3}), options); }, "2 values");
  options.mean = {0};
  options.deviation = {0};
  expect_refused([&] { open_dataset(images, image_slots({1, 2, 3}), options); }, "deviation 0");
  options.deviation = {};
  expect_refused([&] { open_dataset(images, image_slots({1, 2, 3}), options); }, "0 values");
}

TEST_F(ImageData, ReadsCifar) {
  const auto record = [](char label, char pixel) {
    return std::string(1, label) + std::string(1024, pixel) + std::string(2048, '\0');
  };
  const std::string first = write("data_batch_1.bin", record(3, '\x33') + record(1, '\x01'));
  write("data_batch_2.bin", record(9, '\xff'));
  const auto data = open_dataset(folder_.string(), image_slots({3, 32, 32}));
  ASSERT_EQ(data->size(), 3);
  EXPECT_EQ(integers(*data, 2, 1), (Ints{9}));
  EXPECT_FLOAT_EQ(floats(*data, 2, 0)[1023], 1);
  EXPECT_FLOAT_EQ(floats(*data, 0, 0)[0], 0.2F);
  EXPECT_FLOAT_EQ(floats(*data, 0, 0)[1024], 0);
  EXPECT_EQ(open_dataset(first, image_slots({3, 32, 32}))->size(), 2);
  expect_refused(
      [&] {
        open_dataset(write("data_batch_1.bin", "x"), image_slots({3, 32, 32}));
      },
      "no whole number of CIFAR-10 records");
}

TEST(ExampleData, IsRead) {
  const std::string folder = source_folder() + "/examples/data";
  const auto text = open_dataset(folder + "/harbour.txt", text_slots(64, 128));
  EXPECT_GT(text->size(), 1000);
  for (int64_t sample = 0; sample < text->size(); ++sample) integers(*text, sample, 1);
  DatasetOptions options;
  for (const DataPart part : {DataPart::Train, DataPart::Eval}) {
    options.part = part;
    const auto digits = open_dataset(folder + "/digits", image_slots({1, 28, 28}), options);
    ASSERT_EQ(digits->size(), part == DataPart::Train ? 1000 : 200);
    std::vector<int64_t> counts(10);
    for (int64_t sample = 0; sample < digits->size(); ++sample)
      ++counts[static_cast<size_t>(integers(*digits, sample, 1)[0])];
    EXPECT_EQ(counts, std::vector<int64_t>(10, digits->size() / 10));
  }
}

TEST(SyntheticData, IsAFunctionOfTheSeed) {
  std::vector<SlotSpec> slots = text_slots(50, 17);
  slots.push_back({SlotKind::Image, {1, 8, 8}});
  slots.push_back({SlotKind::Label, {}, 3});
  slots.push_back({SlotKind::Float, {40}, 5});
  slots.push_back({SlotKind::Integer, {2, 30}, 4});
  DatasetOptions options;
  options.samples = 10;
  const auto a = open_dataset("synthetic", slots, options);
  const auto b = open_dataset("synthetic", slots, options);
  options.seed = 1;
  const auto other = open_dataset("synthetic", slots, options);
  EXPECT_EQ(a->size(), 10);
  for (int64_t sample : {9, 0, 4}) {
    EXPECT_EQ(integers(*a, sample, 0), integers(*b, sample, 0));
    EXPECT_NE(integers(*a, sample, 0), integers(*other, sample, 0));
    EXPECT_EQ(floats(*a, sample, 2), floats(*b, sample, 2));
    const Ints tokens = integers(*a, sample, 0), next = integers(*a, sample, 1);
    EXPECT_TRUE(std::equal(tokens.begin() + 1, tokens.end(), next.begin()));
    for (int64_t token : tokens) EXPECT_TRUE(token >= 0 && token < 17);
    for (float value : floats(*a, sample, 4)) EXPECT_TRUE(value >= 0 && value < 5);
    const Ints values = integers(*a, sample, 5);
    EXPECT_EQ(std::set<int64_t>(values.begin(), values.end()), (std::set<int64_t>{0, 1, 2, 3}));
  }
  EXPECT_NE(integers(*a, 0, 0), integers(*a, 1, 0));
  expect_refused([&] { open_dataset("synthetic", text_slots(5)); }, "at least 1");
  options.samples = 0;
  expect_refused([&] { open_dataset("synthetic", slots, options); }, "0 samples");
}

TEST(SyntheticData, ImagesAreNormal) {
  const auto data = open_dataset("synthetic", {{SlotKind::Image, {3, 100, 100}}});
  double sum = 0, squares = 0;
  for (float value : floats(*data, 5, 0)) sum += value, squares += double{value} * value;
  EXPECT_NEAR(sum / 30'000, 0, 0.03);
  EXPECT_NEAR(squares / 30'000, 1, 0.05);
}

}  // namespace
}  // namespace windlass
