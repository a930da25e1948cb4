#!/usr/bin/env python3
"""Writes dashboard.json, Grafana's classic model, from the table of panels below.

usage: make_dashboard.py [--check]     --check: only says whether the file is what would be written
"""
from __future__ import annotations

import json
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parent / "dashboard.json"
# What has the model's name, and what belongs to the process as a whole.
MODEL = 'namespace=~"$namespace", model_name=~"$model_name", pod=~"$pod"'
PROCESS = 'namespace=~"$namespace", pod=~"$pod"'
CALLS = f'{PROCESS}, grpc_service=~"eddy[.]v1[.].*"'
SERVER_FAULTS = "Internal|Unavailable|Unknown|DataLoss|ResourceExhausted"
RATE = "[$__rate_interval]"

Query = tuple[str, str]  # expression, legend


def rate(metric: str, labels: str = MODEL) -> str:
    return f"sum(rate({metric}{{{labels}}}{RATE}))"


def rate_by(label: str, metric: str, labels: str = MODEL) -> str:
    return f"sum by ({label}) (rate({metric}{{{labels}}}{RATE}))"


def seen(label: str, metric: str, labels: str) -> Query:
    """By a label of many values, of which only those that ever occurred are drawn."""
    return (f"{rate_by(label, metric, labels)} and sum by ({label}) ({metric}{{{labels}}}) > 0",
            "{{%s}}" % label)


def quantile(q: float, metric: str, by: str = "le") -> str:
    return f"histogram_quantile({q}, sum by ({by}) (rate({metric}_bucket{{{MODEL}}}{RATE})))"


def quantiles(metric: str, *qs: float) -> list[Query]:
    return [(quantile(q, metric), f"p{100 * q:g}") for q in qs or (0.5, 0.9, 0.99)]


def mean(metric: str) -> Query:
    return (f"{rate(metric + '_sum')} / {rate(metric + '_count')}", "mean")


def gauge(metric: str, labels: str = MODEL, by: str = "pod", how: str = "sum") -> Query:
    return (f"{how} by ({by}) ({metric}{{{labels}}})", "{{%s}}" % by)


def panel(title: str, description: str, unit: str, queries: list[Query], *, kind: str = "timeseries",
          width: int = 8, stacked: bool = False) -> dict:
    return {"title": title, "description": description, "unit": unit, "queries": queries, "kind": kind,
            "width": width, "stacked": stacked}


def stat(title: str, description: str, unit: str, expr: str) -> dict:
    return panel(title, description, unit, [(expr, title)], kind="stat", width=3)


HANDLED = rate("grpc_server_handled_total", CALLS)
FAULTY = rate("grpc_server_handled_total", f'{CALLS}, grpc_code=~"{SERVER_FAULTS}"')
OVERVIEW = [
    stat("Calls", "Calls that ended, per second.", "reqps", HANDLED),
    stat("Without our fault", "Share of calls that did not end by a fault of the server: "
         f"{SERVER_FAULTS.replace('|', ', ')}.", "percentunit", f"1 - {FAULTY} / {HANDLED}"),
    stat("Tokens made", "Generated per second.", "short", rate("eddy_generation_tokens_total")),
    stat("TTFT p50", "Arrival of a call to its first token, median.", "s",
         quantile(0.5, "eddy_time_to_first_token_seconds")),
    stat("TTFT p99", "Arrival of a call to its first token.", "s",
         quantile(0.99, "eddy_time_to_first_token_seconds")),
    stat("ITL p99", "Time between successive tokens of a sequence.", "s",
         quantile(0.99, "eddy_inter_token_latency_seconds")),
    stat("Waiting", "Requests that wait for a slot, all replicas.", "short",
         f"sum(eddy_num_requests_waiting{{{MODEL}}})"),
    stat("Slots in use", "Mean over replicas; what scaling goes by.", "percentunit",
         f"avg(eddy_state_slot_usage_ratio{{{MODEL}}})"),
]
LATENCY = [
    panel("Time to first token", "Arrival of a call to its first token, as handed to delivery.", "s",
          quantiles("eddy_time_to_first_token_seconds")),
    panel("Inter-token latency", "Time between successive tokens of one sequence.", "s",
          quantiles("eddy_inter_token_latency_seconds")),
    panel("Whole calls", "Arrival of a call to its end.", "s",
          quantiles("eddy_e2e_request_latency_seconds")),
    panel("Time per output token", "Mean time per token after the first, one value per call.", "s",
          quantiles("eddy_request_time_per_output_token_seconds")),
    panel("Where the time goes", "Mean time of a call in the waiting line, in prefill and in decode.",
          "s", [(mean(f"eddy_request_{part}_time_seconds")[0], part)
                for part in ("queue", "prefill", "decode")], stacked=True),
    panel("Waiting for a slot", "Arrival of a call to its admission.", "s",
          quantiles("eddy_request_queue_time_seconds")),
    panel("Times to first token", "How many calls had their first token after how long.", "s",
          [(f"sum by (le) (increase(eddy_time_to_first_token_seconds_bucket{{{MODEL}}}{RATE}))",
            "{{le}}")], kind="heatmap", width=12),
    panel("Inter-token latencies", "How many tokens came after how long.", "s",
          [(f"sum by (le) (increase(eddy_inter_token_latency_seconds_bucket{{{MODEL}}}{RATE}))",
            "{{le}}")], kind="heatmap", width=12),
]
TRAFFIC = [
    panel("Calls accepted", "By method.", "reqps",
          [(rate_by("method", "eddy_requests_total"), "{{method}}")]),
    panel("Calls that ended well", "By why they ended.", "reqps",
          [(rate_by("finish_reason", "eddy_request_success_total"), "{{finish_reason}}")]),
    panel("Tokens", "Prompt tokens read and tokens generated, per second.", "short",
          [(rate("eddy_prompt_tokens_total"), "read"),
           (rate("eddy_generation_tokens_total"), "generated")]),
    panel("Prompt tokens", "Of a call.", "short", quantiles("eddy_request_prompt_tokens")),
    panel("Generated tokens", "Of a call.", "short", quantiles("eddy_request_generation_tokens")),
    panel("Tokens asked for", "max_new_tokens of a call.", "short",
          quantiles("eddy_request_params_max_new_tokens")),
]
SCHEDULER = [
    panel("Running and waiting", "Sequences that hold a slot, requests that wait for one.", "short",
          [(f"sum(eddy_num_requests_running{{{MODEL}}})", "running"),
           (f"sum(eddy_num_requests_waiting{{{MODEL}}})", "waiting")]),
    panel("Age of the line", "Of the oldest request that waits; the earliest sign of overload.", "s",
          [gauge("eddy_oldest_waiting_seconds", how="max")]),
    panel("Prompt tokens that wait", "Of the requests in the line.", "short",
          [gauge("eddy_waiting_prompt_tokens")]),
    panel("State slots", "In use, and there are.", "short",
          [(f"sum(eddy_state_slots_used{{{MODEL}}})", "in use"),
           (f"sum(eddy_state_slots{{{MODEL}}})", "there are")]),
    panel("Slots filled", "Admissions per second, by where the state came from.", "short",
          [(rate_by("from", "eddy_state_fills_total"), "{{from}}")]),
    panel("Lost numbers", "Sequences ended by NaN or infinity, in total. Anything but 0 is wrong.",
          "short", [gauge("eddy_state_nonfinite_total")]),
    panel("Step time", "One engine step, 99th percentile by what its rows were for.", "s",
          [(quantile(0.99, "eddy_engine_step_duration_seconds", "le, phase"), "{{phase}}")]),
    panel("Steps", "Per second, by what their rows were for.", "short",
          [(rate_by("phase", "eddy_engine_step_duration_seconds_count"), "{{phase}}")]),
    panel("Host share of steps", "Share of step time outside the device's work.", "percentunit",
          [(f"{rate('eddy_engine_host_seconds_total')} / ({rate('eddy_engine_host_seconds_total')} + "
            f"{rate('eddy_engine_device_wait_seconds_total')})", "host")]),
    panel("Recorded steps", "Share of steps that ran from a record (a CUDA graph); 0 without a GPU.",
          "percentunit",
          [(f"{rate('eddy_engine_recorded_steps_total')} / "
            f"{rate('eddy_engine_step_duration_seconds_count')}", "recorded")]),
    panel("Rows of a step", "Tokens fed in one step.", "short",
          [mean("eddy_engine_step_rows"), *quantiles("eddy_engine_step_rows", 0.5, 0.99)]),
    panel("Sequences of a step", "Sequences fed in one step.", "short",
          [mean("eddy_engine_step_sequences"), *quantiles("eddy_engine_step_sequences", 0.5, 0.99)]),
    panel("Attention pages", "In use, and there are; models without attention have none.", "short",
          [(f"sum(eddy_kv_pages_used{{{MODEL}}})", "in use"),
           (f"sum(eddy_kv_pages{{{MODEL}}})", "there are")]),
]
ERRORS = [
    panel("Calls by code", "Calls that did not end OK, per second.", "reqps",
          [seen("grpc_code", "grpc_server_handled_total", f'{CALLS}, grpc_code!="OK"')]),
    panel("Refused and cut off", "By the reason in the error's details, per second.", "reqps",
          [seen("reason", "eddy_request_failures_total", MODEL)]),
    panel("Budgets burnt", "Share of bad events in the last hour over the budget; 1 lasts a month, more "
          "than 14.4 pages.", "short",
          [('eddy:slo_error:ratio_rate1h{namespace=~"$namespace"} / on (slo) group_left () '
            "eddy:slo_budget:ratio", "{{slo}}")]),
]
STREAMS = [
    panel("Text that waits", "For its readers, in bytes.", "bytes",
          [gauge("eddy_stream_outbox_bytes", PROCESS)]),
    panel("Messages", "Sent per second; and of these, such as carried what several steps had made.",
          "short", [(rate("grpc_server_msg_sent_total", CALLS), "sent"),
                    (rate("eddy_stream_coalesced_messages_total", PROCESS), "coalesced")]),
    panel("Streams cut off", "Per second, because their reader took nothing.", "short",
          [(rate_by("pod", "eddy_stream_stalls_total", PROCESS), "{{pod}}")]),
    panel("Calls by method", "Ended per second.", "reqps",
          [seen("grpc_method", "grpc_server_handled_total", CALLS)], width=12),
    panel("Open calls", "Started and not yet ended.", "short",
          [(f"sum by (pod) (grpc_server_started_total{{{CALLS}}}) - sum by (pod) "
            f"(grpc_server_handled_total{{{CALLS}}})", "{{pod}}")], width=12),
]
PROC = [
    panel("Processor", "Cores in use.", "short",
          [(rate_by("pod", "process_cpu_seconds_total", f'{PROCESS}, job=~"(.+/)?eddy"'), "{{pod}}")]),
    panel("Memory of the process", "Resident.", "bytes",
          [gauge("process_resident_memory_bytes", f'{PROCESS}, job=~"(.+/)?eddy"')]),
    panel("Memory of the device", "Held by the server, by what for.", "bytes",
          [gauge("eddy_device_memory_bytes", PROCESS, "kind")], stacked=True),
    panel("File descriptors", "Open, and how many may be.", "short",
          [(f'sum(process_open_fds{{{PROCESS}, job=~"(.+/)?eddy"}})', "open"),
           (f'sum(process_max_fds{{{PROCESS}, job=~"(.+/)?eddy"}})', "at most")]),
    panel("Uptime", "Since the start of the process.", "s",
          [(f'time() - max by (pod) (process_start_time_seconds{{{PROCESS}, job=~"(.+/)?eddy"}})',
            "{{pod}}")]),
    panel("Draining", "1: the replica takes no new calls and will end.", "short",
          [gauge("eddy_draining", PROCESS)]),
    panel("Builds", "Which build runs where.", "short",
          [(f"max by (pod, version, commit) (eddy_build_info{{{PROCESS}}})",
            "{{pod}}: {{version}} {{commit}}")], kind="table", width=8),
    panel("Models", "What is loaded where.", "short",
          [(f"max by (pod, model_name, model_type, state_type, record_bytes) "
            f"(eddy_model_info{{{MODEL}}})", "{{model_name}}: {{model_type}}, {{state_type}}")],
          kind="table", width=8),
    panel("Loading the model", "Time it took.", "s", [gauge("eddy_model_load_duration_seconds")]),
    panel("Spans of traces", "Taken by the collector, and lost by why; 0 where none is set.", "short",
          [(rate("eddy_trace_spans_sent_total", PROCESS), "sent"),
           (rate_by("reason", "eddy_trace_spans_lost_total", PROCESS), "lost: {{reason}}")],
          width=12),
]
ROWS = [("Overview", OVERVIEW), ("Latency", LATENCY), ("Traffic and lengths", TRAFFIC),
        ("Scheduler and states", SCHEDULER), ("Errors", ERRORS), ("Streams", STREAMS),
        ("Process", PROC)]
HEIGHTS = {"stat": 4, "timeseries": 8, "heatmap": 8, "table": 8}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def options(kind: str) -> dict:
    if kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "colorMode": "none", "graphMode": "area", "textMode": "value"}
    if kind == "heatmap":
        return {"calculate": False, "yAxis": {"unit": "s"}, "cellGap": 0,
                "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
                "tooltip": {"mode": "single"}}
    if kind == "table":
        return {"showHeader": True}
    return {"legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"}}


def target(index: int, query: Query, kind: str) -> dict:
    made = {"refId": chr(ord("A") + index), "expr": query[0], "legendFormat": query[1],
            "datasource": SOURCE}
    if kind == "heatmap":
        made["format"] = "heatmap"
    if kind == "table":
        made |= {"format": "table", "instant": True}
    return made


def grafana_panel(number: int, made: dict, x: int, y: int) -> dict:
    defaults: dict = {"unit": made["unit"], "min": 0, "noValue": "none"}
    if made["kind"] == "timeseries":
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": 20 if made["stacked"] else 0,
                              "showPoints": "never",
                              "stacking": {"mode": "normal" if made["stacked"] else "none"}}
    return {"id": number, "type": made["kind"], "title": made["title"],
            "description": made["description"], "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": made["width"], "h": HEIGHTS[made["kind"]]},
            "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options(made["kind"]),
            "targets": [target(i, q, made["kind"]) for i, q in enumerate(made["queries"])]}


def variable(name: str, label: str, query: str) -> dict:
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, "query": query,
            "definition": query, "refresh": 2, "sort": 1, "multi": True, "includeAll": True,
            "current": {"text": ["All"], "value": ["$__all"]}}


def dashboard() -> dict:
    panels: list[dict] = []
    y = 0
    for title, row in ROWS:
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False,
                       "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []})
        x, y = 0, y + 1
        for made in row:
            if x + made["width"] > 24:
                x, y = 0, y + HEIGHTS[made["kind"]]
            panels.append(grafana_panel(len(panels) + 1, made, x, y))
            x += made["width"]
        y += HEIGHTS[row[-1]["kind"]]
    labels = "eddy_num_requests_running"
    return {
        "id": None, "uid": "eddy", "title": "eddy", "tags": ["eddy"], "schemaVersion": 39, "version": 1,
        "editable": True, "graphTooltip": 1, "refresh": "10s", "timezone": "",
        "time": {"from": "now-1h", "to": "now"}, "annotations": {"list": []}, "links": [],
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
             "current": {}, "hide": 0},
            variable("namespace", "Namespace", f"label_values({labels}, namespace)"),
            variable("model_name", "Model",
                     f'label_values({labels}{{namespace=~"$namespace"}}, model_name)'),
            variable("pod", "Pod", f'label_values({labels}{{namespace=~"$namespace", '
                     'model_name=~"$model_name"}, pod)')]},
        "panels": panels}


def main() -> int:
    text = json.dumps(dashboard(), indent=1) + "\n"
    if sys.argv[1:] == ["--check"]:
        if FILE.exists() and FILE.read_text() == text:
            return 0
        print(f"{FILE.name}: is not what make_dashboard.py writes; run it")
        return 1
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
