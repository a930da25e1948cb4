// A team of blocks (a cluster, so that they see each other's shared memory) has a row. It copies
// the logits into shared memory once, and all passes over the row go there: the greatest and the
// finite ones, the sums of log-softmax and entropy, the likeliest tokens if asked for, the changes
// of single logits, the filters (selection.cuh), the draw, the rank. Without filters, or where the
// greatest logit is taken, most of these fall away. Memory is read once, so the floor is 4 bytes a
// logit; in between it is bound by the arithmetic of the passes, some ten instructions a logit
// each.
#include <cuda_runtime.h>

#include <algorithm>
#include <climits>

#include "base/check.h"
#include "kernels/cuda/compiled_for.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/ends/sampler/draw.cuh"
#include "kernels/ends/sampler/sampler_cuda.h"

namespace eddy {
namespace sampler {

struct SampleArgs {
  int count = 0;
  int vocab = 0;
  SamplerShape shape;
  const float* logits = nullptr;    // [count, vocab]
  const StagedRow* rows = nullptr;  // [count]
  const LogitEdit* edits = nullptr;
  const int32_t* also = nullptr;
  RowOutcome* outcomes = nullptr;
  Candidate* top = nullptr;
  float* also_logprobs = nullptr;
  float* working = nullptr;  // [rows_at_once, blocks * segment]
};

// ln sum e^x, and the entropy ln Z - E[x - max].
struct LogMass {
  double value = 0;
  float entropy = 0;
};
template <bool kResident>
__device__ __forceinline__ LogMass LogMassOf(Team* team, const Share<kResident>& share, float max) {
  const Sums<2> sums = SumRow(team, share, max);
  const double log_sum = log(sums.of[0]);
  return {.value = log_sum + static_cast<double>(max),
          .entropy = static_cast<float>(log_sum - sums.of[1] / sums.of[0])};
}

template <bool kResident>
__device__ __forceinline__ RowOutcome SampleRowOf(Team* team, const Share<kResident>& share,
                                                  const SampleArgs& args, const float* logits) {
  const StagedRow& row = RoomOfBlock()->row;
  const RawFacts raw = SeeRow(team, share);
  if (raw.lost != 0) return {};
  RowOutcome outcome = {.finite = 1};
  LogMass log_mass;
  if (row.measured != 0 || row.top > 0 || row.also > 0) {
    log_mass = LogMassOf(team, share, raw.facts.max);
    outcome.entropy = log_mass.entropy;
  }
  if (row.top > 0) {
    ReportTop(*team, share, raw.facts, log_mass.value, args.top + row.first_top);
  }
  for (int i = static_cast<int>(threadIdx.x); team->rank() == 0 && i < row.also; i += kThreads) {
    const auto logit = static_cast<double>(logits[args.also[row.first_also + i]]);
    args.also_logprobs[row.first_also + i] = static_cast<float>(logit - log_mass.value);
  }
  const bool changed = row.edits > 0;
  Facts facts = raw.facts;
  if (changed) facts = Edit(team, share, logits, row, args.edits + row.first_edit);
  if (row.task == SampleTask::kTarget) {
    outcome.token = row.target;
  } else if (facts.max == -kInfinity) {
    return outcome;
  } else if (row.task == SampleTask::kGreatest) {
    outcome.token = facts.best;
  } else {
    outcome.token = DrawToken(team, share, facts, args.vocab);
  }
  if (row.measured == 0) return outcome;
  const bool likeliest = !changed && outcome.token == facts.best;
  const float logit = likeliest ? facts.max : logits[outcome.token];
  outcome.logprob = static_cast<float>(static_cast<double>(logit) - log_mass.value);
  outcome.rank = likeliest ? 1 : Rank(team, share, logits, changed, logit, outcome.token);
  return outcome;
}

template <bool kResident>
__global__ void __launch_bounds__(kThreads, 2) SampleKernel(SampleArgs args) {
  WaitForPrevious();
  Room* const room = RoomOfBlock();
  Team team(args.shape.blocks, &room->team);
  const int at = static_cast<int>(blockIdx.x) / args.shape.blocks;
  const int teams = static_cast<int>(gridDim.x) / args.shape.blocks;
  Share<kResident> share;
  share.first = team.rank() * args.shape.segment;
  share.count = min(args.shape.segment, args.vocab - share.first);
  share.chunk = args.shape.segment / kWarps;
  if (!kResident) {
    const int64_t part = static_cast<int64_t>(at) * args.shape.blocks + team.rank();
    share.elsewhere = args.working + part * args.shape.segment;
  }
  for (int index = at; index < args.count; index += teams) {
    const float* const logits = args.logits + static_cast<int64_t>(index) * args.vocab;
    BeginCopy(share, logits);
    constexpr int kWords = sizeof(StagedRow) / sizeof(int);
    if (threadIdx.x < kWords) {
      reinterpret_cast<int*>(&room->row)[threadIdx.x] =
          reinterpret_cast<const int*>(&args.rows[index])[threadIdx.x];
    }
    WaitForCopies();
    __syncthreads();
    const bool idle = room->row.task == SampleTask::kNothing;
    RowOutcome outcome;
    if (!idle) outcome = SampleRowOf(&team, share, args, logits);
    // Nobody goes on, or away, while another may still read its shared memory. The result goes out
    // behind that, since it is on its way to the host for long.
    team.Sync();
    if (!idle && team.rank() == 0 && threadIdx.x == 0) args.outcomes[index] = outcome;
  }
}

}  // namespace sampler

namespace {

using sampler::kGroup, sampler::kMostBlocks, sampler::kThreads, sampler::kWarps;

// Of a block, so that two fit on a multiprocessor of the vocabularies most models have.
constexpr int64_t kSegmentMost = 20480;

// Shared memory that a block may have, and whether blocks may form clusters.
struct Card {
  int shared_bytes = 0;
  bool clusters = false;
};
Card CardOf() {
  Card card;
  int device = 0, clusters = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&card.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device);
  card.clusters = clusters != 0 && KernelsCompiledFor().clusters();
  return card;
}

}  // namespace

std::unique_ptr<SamplerCuda> SamplerCuda::Make(int64_t vocab, const CudaContext& context) {
  EDDY_CHECK(vocab > 0 && vocab <= INT_MAX);
  const Card card = CardOf();
  std::unique_ptr<SamplerCuda> made(new SamplerCuda(vocab, context));
  SamplerShape& shape = made->shape_;
  while (card.clusters && shape.blocks < kMostBlocks && vocab > shape.blocks * kSegmentMost) {
    shape.blocks *= 2;
  }
  const int64_t share = (vocab + shape.blocks - 1) / shape.blocks;
  constexpr int64_t kStep = kWarps * kGroup;
  shape.segment = static_cast<int>((share + kStep - 1) / kStep * kStep);
  const auto room = static_cast<int64_t>(sizeof(sampler::Room));
  const int64_t values = shape.segment * static_cast<int64_t>(sizeof(float));
  shape.resident = room + values <= card.shared_bytes;
  shape.shared_bytes = shape.resident ? room + values : room;
  if (!shape.resident) {
    shape.rows_at_once = std::max(1, 2 * context.multiprocessors / shape.blocks);
    made->working_ = static_cast<float*>(context.keep(shape.rows_at_once * shape.blocks * values));
    if (made->working_ == nullptr) return nullptr;
  }
  const auto kernel = shape.resident ? sampler::SampleKernel<true> : sampler::SampleKernel<false>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(shape.shared_bytes));
  return made;
}

void SamplerCuda::Run(int count, const float* logits, const StagedRow* rows,
                      const SampleLists& lists) {
  if (count == 0) return;
  const sampler::SampleArgs args = {.count = count,
                                    .vocab = static_cast<int>(vocab_),
                                    .shape = shape_,
                                    .logits = logits,
                                    .rows = rows,
                                    .edits = lists.edits.data(),
                                    .also = lists.also.data(),
                                    .outcomes = lists.outcomes.data(),
                                    .top = lists.top.data(),
                                    .also_logprobs = lists.also_logprobs.data(),
                                    .working = working_};
  const int teams = shape_.resident ? count : std::min(count, shape_.rows_at_once);
  cudaLaunchAttribute attributes[2] = {};
  unsigned known = 0;
  if (KernelsCompiledFor().launches_dependent()) {
    attributes[known].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[known++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape_.blocks > 1) {
    attributes[known].id = cudaLaunchAttributeClusterDimension;
    attributes[known++].val.clusterDim = {static_cast<unsigned>(shape_.blocks), 1, 1};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(teams * shape_.blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shape_.shared_bytes);
  config.stream = static_cast<cudaStream_t>(context_.stream);
  config.attrs = attributes;
  config.numAttrs = known;
  const auto kernel = shape_.resident ? sampler::SampleKernel<true> : sampler::SampleKernel<false>;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, args));
}

}  // namespace eddy
