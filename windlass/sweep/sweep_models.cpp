#include "windlass/sweep/sweep_models.h"

namespace windlass {

const std::vector<SweepSource>& sweep_sources() {
  static const std::vector<SweepSource> kSources = {
      {"gpt2",
       "gpt2:layers=4,hidden=256,heads=4,vocab=2000,dropout=0",
       16,
       0,
       {2, 4, 8, 16, 32, 48},
       true},
      {"resnet-18", "resnet-18:classes=10", 0, 32, {2, 4, 6, 8, 12, 16}, true},
      {"resnet-50", "resnet-50:classes=10", 0, 32, {2, 4, 6, 8, 10, 12}, false},
      {"wide-resnet", "wide-resnet-50-2:classes=10", 0, 32, {2, 3, 4, 6, 8, 10}, false},
      {"bert",
       "bert-base:layers=4,hidden=256,heads=4,vocab=20000",
       16,
       0,
       {2, 4, 6, 8, 12, 16},
       false},
      {"vit",
       "vit:layers=6,hidden=192,heads=3,patch=8,classes=10",
       0,
       32,
       {2, 4, 8, 16, 24, 32},
       false},
      {"gpt2-deep",
       "gpt2:layers=8,hidden=384,heads=6,vocab=2000",
       16,
       0,
       {2, 4, 6, 8, 12, 16},
       false}};
  return kSources;
}

}  // namespace windlass
