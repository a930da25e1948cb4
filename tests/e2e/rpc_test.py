"""Proves that a client in another language can use all of the API: every RPC, health, reflection,
error details and retries. Run by python_client.py, which makes the stubs and sets BIN_DIR and
MODEL_DIR. One server serves all tests but that of a full line."""

import concurrent.futures
import json
import os
import subprocess
import unittest

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase)
from google.protobuf.descriptor_pool import DescriptorPool

from eddy.v1 import generation_pb2 as g
from eddy.v1 import model_pb2 as m
from eddy.v1 import session_pb2 as s
from clients import SERVICES, TIMEOUT, Clients, details
from server_process import ServerProcess, wait_until

BIN_DIR, MODEL_DIR = os.environ["BIN_DIR"], os.environ["MODEL_DIR"]
MODEL = os.path.basename(os.path.normpath(MODEL_DIR))
PROMPT = g.TokenIds(ids=[5, 6, 7, 8, 9, 10, 11, 12])


class RpcTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = ServerProcess(f"{BIN_DIR}/eddy-server", MODEL_DIR)
        cls.addClassCleanup(cls.server.__exit__)
        cls.clients = Clients(cls.server.port)
        assert cls.clients.wait_until_serving(), cls.server.log()
        cls.generation = cls.clients.generation
        cls.model = cls.clients.models.GetModel(m.GetModelRequest(), timeout=TIMEOUT).model
        cls.has_text = m.FEATURE_TEXT in cls.model.features

    def assert_error(self, call, code: grpc.StatusCode, reason: str) -> dict[str, object]:
        """Calls, expects the error, and gives its details."""
        with self.assertRaises(grpc.RpcError) as caught:
            call()
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        found = details(caught.exception)
        self.assertEqual(found["ErrorInfo"].reason, reason)
        self.assertEqual(found["ErrorInfo"].domain, "eddy.v1")
        return found

    def greedy(self, **fields) -> g.GenerateRequest:
        return g.GenerateRequest(
            token_ids=PROMPT, sampling=g.SamplingOptions(temperature=0),
            stopping=g.StoppingOptions(max_new_tokens=12, ignore_eos=True),
            response=g.ResponseOptions(token_ids=True, logprobs=True, top_logprobs=2, timings=True),
            **fields)

    # GenerationService

    def test_generate_and_stream_give_the_same(self) -> None:
        answer, call = self.generation.Generate.with_call(self.greedy(request_id="py-1"),
                                                          timeout=TIMEOUT)
        self.assertEqual(dict(call.trailing_metadata())["x-request-id"], "py-1")
        self.assertEqual(answer.prompt_info.request_id, "py-1")
        self.assertEqual(answer.prompt_info.prompt_tokens, len(PROMPT.ids))
        (whole,) = answer.outputs
        self.assertEqual(len(whole.token_ids), 12)
        self.assertEqual(whole.finish_info.reason, g.FINISH_REASON_LENGTH)
        self.assertEqual(whole.finish_info.usage.generated_tokens, 12)
        self.assertGreater(whole.finish_info.timings.decode_steps, 0)
        for logprob, token in zip(whole.logprobs, whole.token_ids, strict=True):
            self.assertEqual(logprob.token_id, token)
            self.assertEqual(logprob.rank, 1)
            self.assertEqual(logprob.top[0].token_id, token)
            self.assertLessEqual(logprob.logprob, 0)

        messages = list(self.generation.GenerateStream(self.greedy(), timeout=TIMEOUT))
        parts = [part for message in messages for part in message.outputs]
        self.assertEqual([t for part in parts for t in part.token_ids], list(whole.token_ids))
        self.assertEqual("".join(part.text for part in parts), whole.text)
        self.assertEqual(sum(part.num_tokens for part in parts), 12)
        self.assertTrue(parts[-1].HasField("finish_info"))
        self.assertEqual([message.HasField("prompt_info") for message in messages],
                         [True] + [False] * (len(messages) - 1))

    def test_equal_seeds_draw_equal_tokens(self) -> None:
        def draw(seed: int | None) -> tuple[list[int], int]:
            sampling = g.SamplingOptions(temperature=1)
            if seed is not None:
                sampling.seed = seed
            answer = self.generation.Generate(g.GenerateRequest(
                token_ids=PROMPT, sampling=sampling,
                stopping=g.StoppingOptions(max_new_tokens=24, ignore_eos=True),
                response=g.ResponseOptions(token_ids=True)), timeout=TIMEOUT)
            return list(answer.outputs[0].token_ids), answer.outputs[0].finish_info.seed

        tokens, seed = draw(None)
        self.assertEqual(draw(seed), (tokens, seed))
        self.assertEqual(draw(7), draw(7))
        self.assertNotEqual(draw(7)[0], draw(8)[0])

    def test_score_agrees_with_what_was_generated(self) -> None:
        made = self.generation.Generate(self.greedy(), timeout=TIMEOUT).outputs[0]
        ids = list(PROMPT.ids) + list(made.token_ids)
        scored = self.generation.Score(
            g.ScoreRequest(token_ids=g.TokenIds(ids=ids), first_token=len(PROMPT.ids),
                           top_logprobs=1), timeout=TIMEOUT)
        self.assertEqual([entry.token_id for entry in scored.logprobs], list(made.token_ids))
        for one, other in zip(scored.logprobs, made.logprobs, strict=True):
            self.assertAlmostEqual(one.logprob, other.logprob, delta=1e-3)
        self.assertEqual(scored.scored_tokens, 12)
        self.assertAlmostEqual(scored.sum_logprob, sum(e.logprob for e in scored.logprobs), places=4)
        whole = self.generation.Score(
            g.ScoreRequest(token_ids=g.TokenIds(ids=ids), next_token_ids=[3]), timeout=TIMEOUT)
        self.assertFalse(whole.logprobs[0].HasField("logprob"))
        self.assertEqual(whole.scored_tokens, len(ids) - 1)
        self.assertEqual([entry.token_id for entry in whole.next], [3])

    def test_tokenize_and_detokenize_undo_each_other(self) -> None:
        text = "Once upon a time, Zoë saw a 🦊."
        if not self.has_text:
            self.assert_error(lambda: self.generation.Tokenize(g.TokenizeRequest(text=text),
                                                               timeout=TIMEOUT),
                              grpc.StatusCode.INVALID_ARGUMENT, "NO_TOKENIZER")
            self.assert_error(lambda: self.generation.Detokenize(g.DetokenizeRequest(token_ids=[5]),
                                                                 timeout=TIMEOUT),
                              grpc.StatusCode.INVALID_ARGUMENT, "NO_TOKENIZER")
            return
        tokenized = self.generation.Tokenize(g.TokenizeRequest(text=text, tokens=True),
                                             timeout=TIMEOUT)
        covered = b"".join(text.encode()[t.begin:t.end] for t in tokenized.tokens)
        self.assertEqual(covered.decode(), text)
        back = self.generation.Detokenize(g.DetokenizeRequest(token_ids=tokenized.token_ids),
                                          timeout=TIMEOUT)
        self.assertEqual(back.text, text)

    def test_a_stop_string_ends_the_text_before_it(self) -> None:
        if not self.has_text:
            self.skipTest("the model has no tokenizer")
        request = g.GenerateRequest(text="Once upon a time", sampling=g.SamplingOptions(temperature=0),
                                    stopping=g.StoppingOptions(max_new_tokens=40))
        free = self.generation.Generate(request, timeout=TIMEOUT).outputs[0].text
        stop = free[len(free) // 2:][:3]
        request.stopping.stop_strings.append(stop)
        stopped = self.generation.Generate(request, timeout=TIMEOUT).outputs[0]
        self.assertEqual(stopped.text, free[:free.index(stop)])
        self.assertEqual(stopped.finish_info.reason, g.FINISH_REASON_STOP_STRING)
        self.assertEqual(stopped.finish_info.stop_string, stop)

    # ModelService

    def test_the_server_tells_its_model_and_load(self) -> None:
        listed = self.clients.models.ListModels(m.ListModelsRequest(), timeout=TIMEOUT)
        self.assertEqual([model.name for model in listed.models], [MODEL])
        self.assertEqual(self.model, listed.models[0])
        self.assertEqual(self.model.name, MODEL)
        self.assertEqual(len(self.model.fingerprint), 32)
        self.assertGreater(self.model.limits.max_sequences, 0)
        status = self.clients.models.GetServerStatus(m.GetServerStatusRequest(), timeout=TIMEOUT)
        self.assertEqual(status.state, m.SERVER_STATE_SERVING)
        self.assertEqual([load.model for load in status.loads], [MODEL])
        self.assertEqual(status.loads[0].slots_total, self.model.limits.max_sequences)
        self.assert_error(
            lambda: self.clients.models.GetModel(m.GetModelRequest(model="none"), timeout=TIMEOUT),
            grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")

    # SessionService

    def test_sessions_are_not_offered_yet(self) -> None:
        sessions = self.clients.sessions
        calls = (
            lambda: sessions.CreateSession(s.CreateSessionRequest(token_ids=PROMPT), timeout=TIMEOUT),
            lambda: sessions.GetSession(s.GetSessionRequest(session_id="a"), timeout=TIMEOUT),
            lambda: sessions.ListSessions(s.ListSessionsRequest(), timeout=TIMEOUT),
            lambda: sessions.ForkSession(s.ForkSessionRequest(count=1), timeout=TIMEOUT),
            lambda: sessions.DeleteSession(s.DeleteSessionRequest(session_id="a"), timeout=TIMEOUT),
            lambda: list(sessions.ExportSession(s.ExportSessionRequest(), timeout=TIMEOUT)),
            lambda: sessions.ImportSession(iter([s.ImportSessionRequest(start=s.ImportStart())]),
                                           timeout=TIMEOUT),
            lambda: self.generation.Generate(
                self.greedy(session=g.SessionOptions(keep=True)), timeout=TIMEOUT),
        )
        for call in calls:
            found = self.assert_error(call, grpc.StatusCode.UNIMPLEMENTED, "FEATURE_DISABLED")
            self.assertIn("sessions", found["ErrorInfo"].metadata["feature"])

    # Errors

    def test_all_faults_of_a_request_come_at_once(self) -> None:
        request = g.GenerateRequest(
            token_ids=g.TokenIds(ids=[1, self.model.vocab_size]), priority=101,
            sampling=g.SamplingOptions(temperature=float("nan"), top_p=1.5, min_p=-0.5),
            stopping=g.StoppingOptions(max_new_tokens=self.model.limits.max_new_tokens + 1))
        for call in (lambda: self.generation.Generate(request, timeout=TIMEOUT),
                     lambda: list(self.generation.GenerateStream(request, timeout=TIMEOUT))):
            found = self.assert_error(call, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
            violations = {v.field: v.description for v in found["BadRequest"].field_violations}
            for field in ("priority", "sampling.temperature", "sampling.top_p", "sampling.min_p",
                          "stopping.max_new_tokens"):
                self.assertIn(field, violations)
            self.assertIn("1.5", violations["sampling.top_p"])
            self.assertTrue(any(field.startswith("token_ids") for field in violations), violations)

    def test_prompts_that_cannot_be_read_have_reasons_of_their_own(self) -> None:
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        generate = self.generation.Generate
        self.assert_error(lambda: generate(g.GenerateRequest(), timeout=TIMEOUT), invalid,
                          "PROMPT_EMPTY")
        too_long = g.TokenIds(ids=[5] * (self.model.limits.max_prompt_tokens + 1))
        found = self.assert_error(
            lambda: generate(g.GenerateRequest(token_ids=too_long), timeout=TIMEOUT), invalid,
            "PROMPT_TOO_LONG")
        self.assertEqual(found["ErrorInfo"].metadata["limit"],
                         str(self.model.limits.max_prompt_tokens))
        found = self.assert_error(
            lambda: generate(self.greedy(model="none"), timeout=TIMEOUT), grpc.StatusCode.NOT_FOUND,
            "MODEL_NOT_FOUND")
        self.assertEqual(found["ResourceInfo"].resource_name, "none")

    def test_text_that_is_no_utf8_is_refused(self) -> None:
        # Field 3 (text) with one byte 0xFF; Python's own messages cannot hold it.
        call = self.clients.channel.unary_unary("/eddy.v1.GenerationService/Generate",
                                                request_serializer=lambda raw: raw,
                                                response_deserializer=g.GenerateResponse.FromString)
        found = self.assert_error(lambda: call(b"\x1a\x01\xff", timeout=TIMEOUT),
                                  grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        self.assertEqual([v.field for v in found["BadRequest"].field_violations], ["text"])

    def test_a_deadline_and_a_cancel_free_the_slot(self) -> None:
        endless = g.GenerateRequest(
            token_ids=PROMPT, stopping=g.StoppingOptions(
                max_new_tokens=self.model.limits.max_new_tokens, ignore_eos=True))
        stream = self.generation.GenerateStream(endless, timeout=TIMEOUT)
        next(stream)
        stream.cancel()
        self.assertEqual(stream.code(), grpc.StatusCode.CANCELLED)
        with self.assertRaises(grpc.RpcError) as caught:
            self.generation.Generate(endless, timeout=0.05)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        self.assertTrue(wait_until(lambda: self.server.metric(
            f'eddy_state_slots_used{{model_name="{MODEL}"}}') == 0))

    # Metrics

    def test_the_page_counts_every_call(self) -> None:
        def counts(method: str, kind: str) -> dict[str, float]:
            labels = (f'grpc_method="{method}",grpc_service="{SERVICES[0]}",grpc_type="{kind}"')
            names = {"started": f"grpc_server_started_total{{{labels}}}",
                     "received": f"grpc_server_msg_received_total{{{labels}}}",
                     "sent": f"grpc_server_msg_sent_total{{{labels}}}",
                     "ok": f'grpc_server_handled_total{{grpc_code="OK",{labels}}}',
                     "refused": f'grpc_server_handled_total{{grpc_code="NotFound",{labels}}}',
                     "timed": f"grpc_server_handling_seconds_count{{{labels}}}"}
            return {name: self.server.metric(series) for name, series in names.items()}

        def difference(method: str, kind: str, calls) -> dict[str, float]:
            before = counts(method, kind)
            messages = calls()
            wait_until(lambda: counts(method, kind)["timed"] == before["timed"] + 2, 5)
            after = {name: value - before[name] for name, value in counts(method, kind).items()}
            self.assertEqual(after.pop("sent"), messages)
            return after

        def unary() -> int:
            self.generation.Generate(self.greedy(), timeout=TIMEOUT)
            self.assert_error(lambda: self.generation.Generate(self.greedy(model="none"),
                                                               timeout=TIMEOUT),
                              grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
            return 1

        def stream() -> int:
            messages = list(self.generation.GenerateStream(self.greedy(), timeout=TIMEOUT))
            self.assert_error(lambda: list(self.generation.GenerateStream(
                self.greedy(model="none"), timeout=TIMEOUT)),
                              grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
            return len(messages)

        expected = {"started": 2, "received": 2, "ok": 1, "refused": 1, "timed": 2}
        self.assertEqual(difference("Generate", "unary", unary), expected)
        self.assertEqual(difference("GenerateStream", "server_stream", stream), expected)

    # Health and reflection

    def test_health_knows_every_name(self) -> None:
        for service in ("", *SERVICES, "liveness"):
            answer = self.clients.health.Check(health_pb2.HealthCheckRequest(service=service),
                                               timeout=TIMEOUT)
            self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING, service)
        watch = self.clients.health.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.SERVING)
        watch.cancel()
        with self.assertRaises(grpc.RpcError) as caught:
            self.clients.health.Check(health_pb2.HealthCheckRequest(service="none"), timeout=TIMEOUT)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_reflection_describes_every_service(self) -> None:
        database = ProtoReflectionDescriptorDatabase(self.clients.channel)
        self.assertLessEqual(set(SERVICES), set(database.get_services()))
        pool = DescriptorPool(database)
        for name, module in zip(SERVICES, (g, m, s), strict=True):
            service = pool.FindServiceByName(name)
            own = module.DESCRIPTOR.services_by_name[name.rpartition(".")[2]]
            self.assertEqual([method.name for method in service.methods],
                             [method.name for method in own.methods])

    # The command-line client, against the same server

    def test_the_command_line_client_gives_the_same(self) -> None:
        ids = ",".join(map(str, PROMPT.ids))
        done = subprocess.run(
            [f"{BIN_DIR}/eddy", f"--target=127.0.0.1:{self.server.port}", "generate",
             f"--token_ids={ids}", "--temperature=0", "--max_new_tokens=12", "--ignore_eos",
             "--logprobs=0", "--output=json"], capture_output=True, text=True, timeout=TIMEOUT,
            check=True)
        made = self.generation.Generate(self.greedy(), timeout=TIMEOUT).outputs[0]
        outputs = [part for line in done.stdout.splitlines() for part in json.loads(line)["outputs"]]
        self.assertEqual([entry["token_id"] for part in outputs for entry in part["logprobs"]],
                         list(made.token_ids))
        self.assertEqual("".join(part["text"] for part in outputs), made.text)


class FullLineTest(unittest.TestCase):
    def test_a_refused_call_succeeds_when_it_is_tried_again(self) -> None:
        flags = ("--max_sequences=1", "--max_waiting_requests=1", "--max_new_tokens=1048576")
        with ServerProcess(f"{BIN_DIR}/eddy-server", MODEL_DIR, flags) as server:
            clients = Clients(server.port)
            self.assertTrue(clients.wait_until_serving(), server.log())
            endless = g.GenerateRequest(token_ids=PROMPT, stopping=g.StoppingOptions(
                max_new_tokens=1048576, ignore_eos=True))
            short = g.GenerateRequest(token_ids=PROMPT,
                                      stopping=g.StoppingOptions(max_new_tokens=1))

            def load() -> m.ModelLoad:
                return clients.models.GetServerStatus(m.GetServerStatusRequest(),
                                                      timeout=TIMEOUT).loads[0]

            # One call runs and one waits, so that the line is full.
            running = clients.generation.Generate.future(endless, timeout=TIMEOUT)
            self.assertTrue(wait_until(lambda: load().running_sequences == 1))
            waiting = clients.generation.Generate.future(endless, timeout=TIMEOUT)
            self.assertTrue(wait_until(lambda: load().waiting_requests == 1))
            with self.assertRaises(grpc.RpcError) as caught:
                clients.generation.Generate(short, timeout=TIMEOUT)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
            found = details(caught.exception)
            self.assertEqual(found["ErrorInfo"].reason, "QUEUE_FULL")
            pushback = int(dict(caught.exception.trailing_metadata())["grpc-retry-pushback-ms"])
            self.assertGreaterEqual(pushback, 100)
            self.assertLessEqual(pushback, 5000)
            self.assertEqual(found["RetryInfo"].retry_delay.ToMilliseconds(), pushback)

            # A client that retries is refused once; then there is room, and it is served.
            retrying = Clients(server.port, {"methodConfig": [{"name": [{}], "retryPolicy": {
                "maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "1s",
                "backoffMultiplier": 2, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]})
            refusals = f'eddy_request_failures_total{{model_name="{MODEL}",reason="queue_full"}}'
            served = retrying.generation.Generate.future(short, timeout=TIMEOUT)
            self.assertTrue(wait_until(lambda: server.metric(refusals) >= 2))
            running.cancel()
            waiting.cancel()
            self.assertEqual(served.result().outputs[0].num_tokens, 1)
            self.assertEqual(server.stop(), 0, server.log())


if __name__ == "__main__":
    unittest.main()
