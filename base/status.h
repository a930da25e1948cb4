// Passing errors on.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the calling function if `expr` is not OK.
#define EDDY_RETURN_IF_ERROR(expr)                                                \
  do {                                                                            \
    if (absl::Status eddy_status = (expr); !eddy_status.ok()) return eddy_status; \
  } while (0)

#define EDDY_STATUS_CONCAT_INNER(a, b) a##b
#define EDDY_STATUS_CONCAT(a, b) EDDY_STATUS_CONCAT_INNER(a, b)

// EDDY_ASSIGN_OR_RETURN(auto x, F()): declares or assigns x, or returns F's error.
#define EDDY_ASSIGN_OR_RETURN(lhs, expr) \
  EDDY_ASSIGN_OR_RETURN_INNER(EDDY_STATUS_CONCAT(eddy_or_, __LINE__), lhs, expr)
#define EDDY_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return std::move(tmp).status();    \
  lhs = *std::move(tmp)
