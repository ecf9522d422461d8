#include "windlass/model/padding_rows.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/graph/builder.h"

namespace windlass {
namespace {

// The notes on a table [6, 2] whose rows are zero as named, all others 1.
std::vector<std::string> notes_on(const std::vector<int64_t>& zeros, bool trainable = true) {
  Model model;
  GraphBuilder g("words");
  const TensorId ids = g.input("ids", {DType::I64, {4}});
  const TensorId table = g.weight("words.weight", {DType::F32, {6, 2}});
  g.attach_mean_squared_error(g.op(OpKind::Embedding, NoAttrs{}, {ids, table}, "look up"));
  model.graph = g.finish();
  model.graph[table].trainable = trainable;
  std::vector<float> values(12, 1);
  for (int64_t row : zeros)
    for (int64_t i = 0; i < 2; ++i) values[static_cast<size_t>(2 * row + i)] = 0;
  WeightLocation& location = model.weights[table];
  location.bytes = 48;
  location.value.resize(48);
  std::memcpy(location.value.data(), values.data(), 48);
  return note_padding_rows(model);
}

TEST(PaddingRows, AreNoted) {
  using testing::ElementsAre;
  using testing::HasSubstr;
  using testing::IsEmpty;
  EXPECT_THAT(notes_on({0}), ElementsAre(HasSubstr("\"words.weight\": row 0 is zero")));
  EXPECT_THAT(notes_on({5}), ElementsAre(HasSubstr("row 5 is zero")));
  EXPECT_THAT(notes_on({}), IsEmpty());
  EXPECT_THAT(notes_on({0, 1, 2, 3, 4, 5}), IsEmpty());  // a table that begins with zeros
  EXPECT_THAT(notes_on({0}, false), IsEmpty());
}

}  // namespace
}  // namespace windlass
