#include "windlass/report/validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

std::vector<ValidationTable> all_tables() {
  std::vector<ValidationTable> tables;
  for (const ValidationText& text : validation_texts()) {
    if (text.name == kSearchTable) continue;
    tables.push_back(read_validation(text.name, text.text));
  }
  return tables;
}

// Rows whose label begins with `label`, and all of the layer formulas.
std::vector<ValidationTable> small_tables(const std::string& label) {
  std::vector<ValidationTable> tables = all_tables();
  for (ValidationTable& table : tables)
    if (table.figure != ValidatedFigure::LayerMemory)
      std::erase_if(table.rows,
                    [&](const ValidationRow& row) { return !row.label.starts_with(label); });
  std::erase_if(tables, [](const ValidationTable& table) { return table.rows.empty(); });
  return tables;
}

void expect_within_bars(const std::vector<ValidationTable>& tables) {
  for (const ValidationTable& table : tables) {
    EXPECT_TRUE(table.passed()) << table.name << ": mean " << table.mean_error() << ", max "
                                << table.max_error();
    for (const ValidationRow& row : table.rows)
      EXPECT_GT(row.predicted, 0) << table.name << ": " << row.label;
  }
}

TEST(Validation, TablesAreComplete) {
  std::map<std::string, size_t> rows;
  for (const ValidationTable& table : all_tables()) {
    rows[table.name] = table.rows.size();
    EXPECT_THAT(table.source,
                testing::AnyOf(testing::HasSubstr("arXiv"), testing::HasSubstr("ml-engineering"),
                               testing::HasSubstr("DLPerf"), testing::HasSubstr("u39kun")));
    EXPECT_GT(table.bar_max, 0);
  }
  const std::map<std::string, size_t> expected = {
      {"activation-memory", 8}, {"activation-share", 20}, {"iteration-time", 8},
      {"layer-memory", 6},      {"pass-time", 3},         {"plain-passes", 12},
      {"state-memory", 4},      {"throughput", 10},       {"whole-memory", 8},
      {"whole-time", 30}};
  EXPECT_EQ(rows, expected);
}

TEST(Validation, ErrorsAreRelativeAndAbsolute) {
  ValidationTable table;
  table.bar_mean = 0.06;
  table.bar_max = 0.12;
  table.rows.resize(2);
  table.rows[0].published = 100, table.rows[0].predicted = 111;
  table.rows[1].published = 100, table.rows[1].predicted = 101;
  EXPECT_NEAR(table.mean_error(), 0.06, 1e-12);
  EXPECT_NEAR(table.max_error(), 0.11, 1e-12);
  table.rows[0].predicted = 110;
  EXPECT_TRUE(table.passed());
  table.rows[0].predicted = 87;  // mean 0.07
  EXPECT_FALSE(table.passed());
}

TEST(Validation, RefusesWhatItDoesNotKnow) {
  EXPECT_THROW(read_validation("t", "{}"), Error);
  EXPECT_THROW(read_validation("t", R"({"title": "", "source": "", "unit": "s",
      "quantity": "colour", "rows": []})"),
               Error);
  EXPECT_THROW(read_validation("t", R"({"title": "", "source": "", "unit": "s",
      "quantity": "step-time", "rows": [{"label": "a"}]})"),
               Error);
}

TEST(Validation, SmallRowsAreWithinTheBars) {
  std::vector<ValidationTable> tables = small_tables("22B");
  ASSERT_EQ(tables.size(), 5u);
  run_validation(tables);
  expect_within_bars(tables);
}

TEST(Validation, ThreadsChangeNothing) {
  std::vector<ValidationTable> one = small_tables("22B"), three = one;
  run_validation(one, 1);
  run_validation(three, 3);
  for (size_t t = 0; t < one.size(); ++t)
    for (size_t r = 0; r < one[t].rows.size(); ++r)
      EXPECT_EQ(one[t].rows[r].predicted, three[t].rows[r].predicted);
}

TEST(ValidationSlow, AllRowsAreWithinTheBars) {
  std::vector<ValidationTable> tables = all_tables();
  run_validation(tables, 2);
  expect_within_bars(tables);
}

}  // namespace
}  // namespace windlass
