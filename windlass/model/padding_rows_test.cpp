#include "windlass/model/padding_rows.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/graph/builder.h"

namespace windlass {
namespace {

// Words of a table [6, 2] whose rows are zero as named, all others 1. `tied`: a product reads the
// table as well.
Model words(const std::vector<int64_t>& zeros, bool trainable = true, bool tied = false) {
  Model model;
  GraphBuilder g("words");
  const TensorId ids = g.input("ids", {DType::I64, {4}});
  const TensorId table = g.weight("words.weight", {DType::F32, {6, 2}});
  TensorId rows = g.op(OpKind::Embedding, NoAttrs{}, {ids, table}, "look up");
  if (tied) rows = g.op(OpKind::Linear, LinearAttrs{}, {rows, table}, "scores");
  g.attach_mean_squared_error(rows);
  model.graph = g.finish();
  model.graph[table].trainable = trainable;
  std::vector<float> values(12, 1);
  for (int64_t row : zeros)
    for (int64_t i = 0; i < 2; ++i) values[static_cast<size_t>(2 * row + i)] = 0;
  WeightLocation& location = model.weights[table];
  location.bytes = 48;
  location.value.resize(48);
  std::memcpy(location.value.data(), values.data(), 48);
  return model;
}

std::vector<std::string> notes_on(const std::vector<int64_t>& zeros, bool trainable = true) {
  return note_padding_rows(words(zeros, trainable));
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

TEST(PaddingRows, AreKept) {
  using testing::ElementsAre;
  using testing::HasSubstr;
  using testing::IsEmpty;
  Model model = words({0});
  const size_t ops = model.graph.ops.size();
  EXPECT_THAT(keep_padding_rows(model, {}),
              ElementsAre(HasSubstr("row 0 is zero, as that of a padding index is, and not")));
  // Equal, Reshape and Where stand between the rows and the loss.
  EXPECT_EQ(model.graph.ops.size(), ops + 3);
  const Op& loss = model.graph[model.graph[model.graph.loss].producer];
  const Op& where = model.graph[model.graph[loss.inputs[0]].producer];
  EXPECT_EQ(where.kind, OpKind::Where);
  EXPECT_EQ(model.graph[model.graph[where.inputs[2]].producer].kind, OpKind::Embedding);
  EXPECT_THAT(note_padding_rows(model), IsEmpty());
}

TEST(PaddingRows, OfTiedOrWantedTablesAreTrained) {
  using testing::HasSubstr;
  using testing::IsEmpty;
  Model tied = words({0}, true, true), wanted = words({0}), none = words({});
  EXPECT_THAT(keep_padding_rows(tied, {}), IsEmpty());
  EXPECT_THAT(note_padding_rows(tied), testing::ElementsAre(HasSubstr("here it is trained")));
  EXPECT_THAT(keep_padding_rows(wanted, {"words.*"}), IsEmpty());
  EXPECT_THAT(keep_padding_rows(none, {}), IsEmpty());
}

}  // namespace
}  // namespace windlass
