// eddy, the command-line client. An interrupt ends the program at once; the connection goes with
// it, and the server cancels the call.
#include <unistd.h>

#include <iostream>

#include "server/client/client.h"

int main(int argc, char** argv) {
  return eddy::client::RunClient({argv + 1, argv + argc}, std::cout, std::cerr,
                                 isatty(STDOUT_FILENO) == 1);
}
