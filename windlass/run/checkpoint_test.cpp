#include "windlass/run/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/graph/builder.h"
#include "windlass/run/checkpoint_folder.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

// A network of one weight that is trained by SGD, and a folder for its checkpoints.
class CheckpointFolder : public testing::Test {
 protected:
  CheckpointFolder() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    GraphBuilder b("one");
    const TensorId x = b.input("x", {DType::F32, {2, 3}});
    const TensorId w = b.weight("w", {DType::F32, {4, 3}});
    b.attach_mean_squared_error(b.op(OpKind::Linear, LinearAttrs{}, {x, w}, "linear"));
    training_ = differentiate(b.finish(), {.optimizer = OptimizerKind::Sgd});
    for (size_t t = 0; t < training_.graph.tensors.size(); ++t)
      if (training_.graph.tensors[t].name == "w")
        tensors_ = {
            {.kind = BufferKind::Weight,
             .tensor = TensorId(t),
             .bytes = static_cast<int64_t>(w_.size() * sizeof(float)),
             .read =
                 [&](std::span<std::byte> out) { std::memcpy(out.data(), w_.data(), out.size()); },
             .write =
                 [&](std::span<const std::byte> in) {
                   std::memcpy(w_.data(), in.data(), in.size());
                 }}};
  }
  ~CheckpointFolder() override { fs::remove_all(folder_); }

  std::string write(int64_t step) {
    w_.assign(12, static_cast<float>(step));
    const std::string path = checkpoint_path(folder_, step);
    write_checkpoint(path, training_, tensors_, {.step = step, .model = 7});
    return path;
  }
  static void damage(const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('x');
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }

  const std::string folder_ = fs::temp_directory_path() / fmt::format("checkpoints-{}", getpid());
  TrainingGraph training_;
  std::vector<float> w_ = std::vector<float>(12);
  std::vector<PersistentTensor> tensors_;
};

TEST_F(CheckpointFolder, TheNewestThatIsWholeIsFound) {
  EXPECT_EQ(newest_checkpoint(folder_).path, "");
  const std::string first = write(1), second = write(2), third = write(3);
  EXPECT_EQ(newest_checkpoint(folder_).path, third);
  damage(third);
  fs::resize_file(second, fs::file_size(second) - 4);
  const FoundCheckpoint found = newest_checkpoint(folder_);
  EXPECT_EQ(found.path, first);
  EXPECT_THAT(found.passed_over, ElementsAre(HasSubstr(third), HasSubstr(second)));
  EXPECT_EQ(read_checkpoint(found.path, training_, tensors_, 7).step, 1);
  EXPECT_EQ(w_[11], 1.0F);
}

TEST_F(CheckpointFolder, NoneThatIsWholeIsAnError) {
  damage(write(4));
  try {
    newest_checkpoint(folder_);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input);
    EXPECT_THAT(error.message(), HasSubstr("none of its 1 checkpoints is whole"));
  }
}

// A run that went on before a damaged checkpoint does not lose its own to it.
TEST_F(CheckpointFolder, LaterOnesDoNotCountAsNewer) {
  for (int64_t step = 1; step <= 5; ++step) write(step);
  remove_old_checkpoints(folder_, checkpoint_path(folder_, 3), 3, 2);
  EXPECT_THAT(files(),
              ElementsAre("checkpoint-00000002.safetensors", "checkpoint-00000003.safetensors",
                          "checkpoint-00000004.safetensors", "checkpoint-00000005.safetensors"));
}

// A folder counts from its index on. What others keep in folders of such names is not touched.
TEST_F(CheckpointFolder, FoldersOfParts) {
  const std::string index = checkpoint_path(folder_, 2, 2);
  const std::string word = make_part_folder(index);
  const std::string part = part_name(word, 1, 1);
  EXPECT_EQ(newest_checkpoint(folder_).path, "");
  w_.assign(12, 2.0F);
  const fs::path place = fs::path(index).parent_path();
  write_checkpoint((place / part).string(), training_, tensors_, {.step = 2, .model = 7});
  const std::string first = write(1);
  EXPECT_EQ(newest_checkpoint(folder_).path, first);
  std::ofstream(index) << R"({"metadata":{},"weight_map":{"w":")" << part << "\"}}";
  EXPECT_EQ(newest_checkpoint(folder_).path, index);
  EXPECT_EQ(find_checkpoint(place.string()).path, index);
  EXPECT_EQ(read_checkpoint(index, training_, tensors_, 7).step, 2);
  EXPECT_EQ(w_[11], 2.0F);

  const std::string left = part_name("00000000", 1, 1);
  std::ofstream(place / left) << "unfinished";
  fs::create_directories(fs::path(folder_) / "checkpoint-500");
  std::ofstream(fs::path(folder_) / "checkpoint-500" / "model.safetensors") << "of others";
  write(2);  // the same step in the other form
  remove_old_checkpoints(folder_, index, 2, 1);
  EXPECT_THAT(files(), ElementsAre("checkpoint-00000002", "checkpoint-500"));
  EXPECT_FALSE(fs::exists(place / left));
  EXPECT_EQ(read_checkpoint(index, training_, tensors_, 7).step, 2);

  damage((place / part).string());
  EXPECT_THROW(check_checkpoint(index), Error);
  std::ofstream(index) << R"({"weight_map":{"w":"../elsewhere.safetensors"}})";
  EXPECT_THROW(check_checkpoint(index), Error);

  std::ofstream(place / "notes.txt") << "mine";
  remove_old_checkpoints(folder_, write(3), 3, 1);
  EXPECT_THAT(files(), ElementsAre("checkpoint-00000002", "checkpoint-00000003.safetensors",
                                   "checkpoint-500"));
  EXPECT_TRUE(fs::exists(place / "notes.txt"));
  EXPECT_FALSE(fs::exists(index));
}

}  // namespace
}  // namespace windlass
