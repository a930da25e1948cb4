#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/weights.h"
#include "kernels/state_layout.h"

namespace eddy {
namespace {

// Each weight begins on a multiple of this many bytes, as device memory does.
constexpr int64_t kAlign = 256;

std::string ShapeText(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Without the ones at the end.
std::vector<int64_t> Trimmed(std::span<const int64_t> shape) {
  std::vector<int64_t> trimmed(shape.begin(), shape.end());
  while (!trimmed.empty() && trimmed.back() == 1) trimmed.pop_back();
  return trimmed;
}

bool SameShape(std::span<const int64_t> file, std::span<const int64_t> ours, bool convolution) {
  const std::vector<int64_t> wanted = Trimmed(ours);
  if (Trimmed(file) == wanted) return true;
  // Vectors may stand among dimensions of one, as Kimi's A_log does: [1, 1, heads, 1].
  std::vector<int64_t> squeezed(file.begin(), file.end());
  std::erase(squeezed, 1);
  if (wanted.size() <= 1 && squeezed == wanted) return true;
  // Depthwise convolutions are stored as [channels, 1, width].
  return convolution && file.size() == 3 && file[1] == 1 &&
         Trimmed(std::vector{file[0], file[2]}) == wanted;
}

std::string Some(std::vector<std::string> names) {
  constexpr size_t kMost = 4;
  std::sort(names.begin(), names.end());
  const size_t all = names.size();
  names.resize(std::min(all, kMost));
  for (std::string& name : names) name.resize(std::min<size_t>(name.size(), 120));
  return absl::StrCat(absl::StrJoin(names, ", "), all > kMost ? ", ..." : "");
}

class Planner {
 public:
  explicit Planner(const TensorFiles& files)
      : files_(files), used_(files.tensors().size()), misfit_(used_.size()) {}

  void Place(const Field& field, std::span<const NameRule> rules) {
    absl::StatusOr<std::optional<WeightPlan::Piece>> piece = Find(field, rules);
    const int64_t offset = plan_.bytes;
    const NameRule* const rule = RuleFor(rules, field.name);
    plan_.bytes += (FieldBytes(field) + kAlign - 1) / kAlign * kAlign;
    if (rule == nullptr || !rule->zeros) plan_.parameters += SourceElements(field, rule);
    if (!piece.ok()) faults_.push_back(piece.status());
    if (!piece.ok() || !piece->has_value()) return;
    (*piece)->offset = offset;
    plan_.groups.back().push_back(**std::move(piece));
  }

  void StartGroup() { plan_.groups.emplace_back(); }

  struct Result {
    WeightPlan plan = {};
    std::vector<absl::Status> faults = {};  // of tensors that do not fit
    std::vector<std::string> missing = {}, surplus = {};
  };
  Result Finish(std::span<const std::string> unused) && {
    Result result = {.faults = std::move(faults_), .missing = {missing_.begin(), missing_.end()}};
    for (size_t i = 0; i < used_.size(); ++i) {
      const TensorInfo& tensor = *files_.tensors()[i].info;
      const int64_t all = tensor.shape.empty() ? 1 : tensor.shape[0];
      if (misfit_[i] || (used_[i] == all && all > 0)) continue;
      if (std::find(unused.begin(), unused.end(), tensor.name) != unused.end()) continue;
      result.surplus.push_back(tensor.name);
    }
    result.plan = std::move(plan_);
    return result;
  }

 private:
  // How many numbers of the files become `field`; `rule` may be null.
  static int64_t SourceElements(const Field& field, const NameRule* rule) {
    return FieldBytes(field) / SizeOf(field.dtype) / (rule == nullptr ? 1 : rule->repeats);
  }

  // Nothing if the tensor is missing, which is noted.
  absl::StatusOr<std::optional<WeightPlan::Piece>> Find(const Field& field,
                                                        std::span<const NameRule> rules) {
    const NameRule* const rule = RuleFor(rules, field.name);
    if (rule == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          files_.name(), ": files of this model_type have no name for the weight ", field.name));
    }
    if (rule->zeros) return WeightPlan::Piece{.field = field};
    const std::string name = TheirName(rules, field.name);
    const StoredTensor* const source = files_.Find(name);
    if (source == nullptr) {
      missing_.insert(name);
      return std::nullopt;
    }
    auto piece = PieceOf(*source, field, *rule);
    if (!piece.ok()) misfit_[static_cast<size_t>(source - files_.tensors().data())] = true;
    return piece;
  }

  absl::StatusOr<WeightPlan::Piece> PieceOf(const StoredTensor& source, const Field& field,
                                            const NameRule& rule) {
    const TensorInfo& info = *source.info;
    const auto error = [&](const std::string& what) {
      return absl::InvalidArgumentError(
          absl::StrCat(source.file->path(), ": ", info.name, " ", what));
    };
    const std::optional<FloatFormat> format = FloatFormatOf(info.dtype);
    if (!format) {
      return error(absl::StrCat("has dtype ", info.dtype, ", supported: F32, BF16, F16"));
    }
    std::vector<int64_t> stored = info.shape;
    const int64_t all_rows = stored.empty() ? 1 : stored[0];
    if (rule.rows > 0) {
      if (rule.first_row + rule.rows > all_rows) {
        return error(absl::StrCat("has ", all_rows, " rows, config.json makes it at least ",
                                  rule.first_row + rule.rows));
      }
      stored[0] = rule.rows;
    }
    const bool convolution = absl::StrContains(field.name, "conv");
    std::array<int64_t, 4> wanted = field.shape;
    wanted[0] /= rule.repeats;
    if (!SameShape(stored, wanted, convolution)) {
      return error(absl::StrCat("has shape ", ShapeText(info.shape), ", config.json makes it ",
                                ShapeText(Trimmed(wanted))));
    }
    used_[static_cast<size_t>(&source - files_.tensors().data())] +=
        rule.rows > 0 ? rule.rows : all_rows;
    const int64_t elements = SourceElements(field, &rule);
    const int64_t row_elements = rule.rows > 0 ? elements / rule.rows : 0;
    return WeightPlan::Piece{.source = &source,
                             .format = *format,
                             .first_element = rule.first_row * row_elements,
                             .elements = elements,
                             .heads = rule.heads,
                             .repeats = rule.repeats,
                             .field = field};
  }

  const TensorFiles& files_;
  std::vector<int64_t> used_;  // [tensors]: rows that became part of a weight
  std::vector<bool> misfit_;   // [tensors]: has a fault of its own
  std::vector<absl::Status> faults_;
  std::set<std::string> missing_;  // several weights may be parts of one
  WeightPlan plan_;
};

Planner::Result Plan(const TensorFiles& files, std::span<const WeightGroup> groups,
                     std::span<const std::string> unused) {
  Planner planner(files);
  for (const WeightGroup& group : groups) {
    planner.StartGroup();
    for (const Field& field : group.fields) planner.Place(field, group.names);
  }
  return std::move(planner).Finish(unused);
}

}  // namespace

const NameRule* RuleFor(std::span<const NameRule> rules, const std::string& ours) {
  const NameRule* best = nullptr;
  for (const NameRule& rule : rules) {
    if (!absl::StartsWith(ours, rule.ours)) continue;
    if (best == nullptr || rule.ours.size() >= best->ours.size()) best = &rule;
  }
  return best;
}

std::string TheirName(std::span<const NameRule> rules, const std::string& ours) {
  const NameRule* const rule = RuleFor(rules, ours);
  return rule == nullptr ? "" : rule->theirs + ours.substr(rule->ours.size());
}

absl::StatusOr<WeightPlan> PlanWeights(const TensorFiles& files,
                                       std::span<const WeightGroup> groups,
                                       std::span<const std::string> unused) {
  Planner::Result result = Plan(files, groups, unused);
  if (!result.faults.empty()) return result.faults.front();
  if (result.missing.empty() && result.surplus.empty()) return std::move(result.plan);
  std::vector<std::string> faults;
  if (!result.missing.empty()) {
    faults.push_back(absl::StrCat(result.missing.size(), " missing (", Some(result.missing), ")"));
  }
  if (!result.surplus.empty()) {
    faults.push_back(
        absl::StrCat(result.surplus.size(), " unexpected (", Some(result.surplus), ")"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      files.name(), ": tensors do not match config.json: ", absl::StrJoin(faults, " and ")));
}

WeightPlan PlanWeights(const TensorFiles& files, std::span<const WeightGroup> groups,
                       std::span<const std::string> unused, std::vector<absl::Status>* faults) {
  Planner::Result result = Plan(files, groups, unused);
  faults->insert(faults->end(), result.faults.begin(), result.faults.end());
  const auto add = [&](const std::string& name, const char* what) {
    faults->push_back(
        absl::InvalidArgumentError(absl::StrCat(files.name(), ": ", name.substr(0, 120), what)));
  };
  if (files.complete()) {
    for (const std::string& name : result.missing) add(name, " is missing");
  }
  for (const std::string& name : result.surplus)
    add(name, " is not in a model of this config.json");
  return std::move(result.plan);
}

}  // namespace eddy
