"""What a client of all services needs; runs in the environment of python_client.py."""

import json

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from eddy.v1 import generation_pb2_grpc, model_pb2_grpc, session_pb2_grpc
from server_process import wait_until

SERVICES = ("eddy.v1.GenerationService", "eddy.v1.ModelService", "eddy.v1.SessionService")
TIMEOUT = 60


class Clients:
    """Stubs on one channel without retries, unless a service config says so."""

    def __init__(self, port: int, config: dict | None = None) -> None:
        options = [("grpc.enable_retries", 1 if config else 0), ("grpc.use_local_subchannel_pool", 1)]
        if config:
            options.append(("grpc.service_config", json.dumps(config)))
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
        self.generation = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.sessions = session_pb2_grpc.SessionServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)
        self.health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT, wait_for_ready=True)

    def wait_until_serving(self) -> bool:
        request = health_pb2.HealthCheckRequest(service=SERVICES[0])
        return wait_until(lambda: self.health.Check(request, timeout=TIMEOUT).status ==
                          health_pb2.HealthCheckResponse.SERVING)


def details(error: grpc.RpcError) -> dict[str, object]:
    """The details of an error by the names of their types."""
    found: dict[str, object] = {}
    for packed in rpc_status.from_call(error).details:
        kind = packed.type_url.rpartition(".")[2]
        message = getattr(error_details_pb2, kind)()
        assert packed.Unpack(message)
        found[kind] = message
    return found
