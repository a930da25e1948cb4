// The program eddy, with its output handed in so that tests can read it.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace eddy::client {

// `args` without the program's name. Returns the exit status: 0, 1 if model inspect found problems,
// 2 for a wrong command line, or 10 and the gRPC code. `terminal`: a person reads `out`.
int RunClient(const std::vector<std::string>& args, std::ostream& out, std::ostream& err,
              bool terminal);

}  // namespace eddy::client
