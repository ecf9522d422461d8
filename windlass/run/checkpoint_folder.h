// Checkpoints in a folder: their names, which is the newest that is whole, and which go.
//
// One process writes checkpoint-00000120.safetensors. Several write a folder checkpoint-00000120
// with a file of each rank and an index, model.safetensors.index.json: there is no checkpoint
// before the index is there. Names of the files of ranks are new each time, so that a checkpoint of
// the same step that is there already stays whole until the index is replaced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace windlass {

// The file of a step in a folder; of several ranks the index.
std::string checkpoint_path(const std::string& folder, int64_t step, int32_t ranks = 1);

// Makes the folder of an index. Returns a word for names of files that are not there yet. Throws
// Error{Runtime} if it cannot be made.
std::string make_part_folder(const std::string& index);
// "model-0f3c9a21-00001-of-00002.safetensors"
std::string part_name(const std::string& word, size_t number, size_t count);

struct FoundCheckpoint {
  std::string path;                           // empty if the folder has none
  std::vector<std::string> passed_over = {};  // what is wrong with newer ones, a message each
};
// The newest one in a folder that is whole. Throws Error{Input} if there are some, but none is.
FoundCheckpoint newest_checkpoint(const std::string& folder);
// What --resume means by a path: the newest one of a folder, the folder of one, or the file itself.
// A folder without checkpoints is where a run that was killed early left off: then there is no
// path.
FoundCheckpoint find_checkpoint(const std::string& path);
// `written` has just been. Of the checkpoints up to its step, removes all but the newest `keep`
// steps, and another one of the same step; and what runs that were killed while they wrote left
// unfinished. Later ones stay: they may be damaged, and must not count in place of those that are
// whole. Files that are not of windlass stay.
void remove_old_checkpoints(const std::string& folder, const std::string& written, int64_t step,
                            size_t keep);

}  // namespace windlass
