// EDDY_CHECK(cond): ends the program with file and line when the program itself is wrong, in every
// build. EDDY_DCHECK(cond): the same, in debug builds only, for checks on hot paths. Neither is for
// bad input: that is an absl::Status.
#pragma once

#include <cstdio>
#include <cstdlib>

#define EDDY_CHECK(cond)                                                            \
  do {                                                                              \
    if (!(cond)) {                                                                  \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #cond); \
      std::abort();                                                                 \
    }                                                                               \
  } while (0)

#ifdef NDEBUG
#define EDDY_DCHECK(cond) \
  do {                    \
  } while (false && (cond))
#else
#define EDDY_DCHECK(cond) EDDY_CHECK(cond)
#endif
