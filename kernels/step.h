// One pass through the model, as layers see it.
#pragma once

#include <cstdint>

namespace eddy {

// Slot 0 and page 0 are real memory that belongs to nobody: a kernel that forgets to skip them
// harms only them.
inline constexpr int32_t kNoSlot = 0;
inline constexpr int32_t kNoPage = 0;

using Stream = void*;  // a cudaStream_t; null on the CPU

// One pass through the model: `rows` tokens that belong to `sequences` sequences, each sequence's
// rows side by side and in order. A decoding sequence has one row, a prefilling one has many;
// nothing else tells them apart. All pointers are on the device that runs the step and stay valid
// until the step has finished.
struct Step {
  int rows = 0;
  int sequences = 0;
  int single_row_sequences = 0;  // the first so many have exactly one row each: the decoding ones
  int max_rows_per_sequence = 0;
  const int32_t* tokens = nullptr;     // [rows]
  const int32_t* row_start = nullptr;  // [sequences + 1]; rows of i: row_start[i] .. row_start[i+1]
  const int32_t* slots = nullptr;      // [sequences]; kNoSlot: padding, no state is read or written
  const int32_t* positions = nullptr;  // [sequences]; tokens of it that came before its first row
  // [sequences, max_pages], null if no layer attends: position t of a sequence lies on the page
  // that entry (t / rows_per_page) % max_pages of its line names; entries beyond its pages are
  // kNoPage. If it has fewer than max_pages, it never comes to a position that would wrap round;
  // with all of them they may be a ring (see kernels/rules/attention/attention.h).
  const int32_t* pages = nullptr;
  int max_pages = 0;
  // Null: nobody asks, and layers compute nothing more than without it. Else the layer that runs
  // writes here what it tells of each row (LayerNeeds::readouts, in that order): [readouts, rows].
  // Its other results are the same to the bit. Model::Forward moves it on from layer to layer.
  float* readouts = nullptr;
  Stream stream = nullptr;
};

}  // namespace eddy
