// The program eddy against services that answer from a script, in this process, on a port of the
// loopback.
#pragma once

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "server/client/client.h"
#include "tests/server/client/fake_services.h"

namespace eddy::client {

class ClientTest : public testing::Test {
 protected:
  ClientTest() {
    grpc::EnableDefaultHealthCheckService(true);
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&generation_);
    builder.RegisterService(&models_);
    server_ = builder.BuildAndStart();
    target_ = "--target=127.0.0.1:" + std::to_string(port);
  }

  int Run(std::vector<std::string> args, bool terminal = false) {
    out_.str("");
    err_.str("");
    args.push_back(target_);
    return RunClient(args, out_, err_, terminal);
  }
  std::string out() const { return out_.str(); }
  std::string err() const { return err_.str(); }

  FakeGeneration generation_;
  FakeModels models_;
  std::unique_ptr<grpc::Server> server_;
  std::string target_;
  std::ostringstream out_, err_;
};

MATCHER_P(EqualsJson, json, "") {
  const auto expected = FromJson<std::decay_t<arg_type>>(json);
  *result_listener << arg.ShortDebugString();
  return google::protobuf::util::MessageDifferencer::Equals(arg, expected);
}

}  // namespace eddy::client
