#!/usr/bin/env python3
"""Prints the Grafana dashboard of dashboard.json: one row of panels for all stores. Change it here, not there."""

import json

PANELS = [
    ("Commits per second", "reqps", [("rate(untorn_commits_total[$__rate_interval])", "{{store}}")]),
    (
        "Commits that shared a flush",
        "none",
        [
            (
                "rate(untorn_commits_total[$__rate_interval]) / rate(untorn_commit_groups_total[$__rate_interval])",
                "{{store}}",
            )
        ],
    ),
    (
        "A commit, from the call until it is durable",
        "s",
        [
            (
                f'histogram_quantile({share}, rate(untorn_stage_seconds_bucket{{stage="commit"}}[$__rate_interval]))',
                f"{{{{store}}}} p{share * 100:g}",
            )
            for share in (0.5, 0.99)
        ],
    ),
    (
        "Time in each stage, per second",
        "percentunit",
        [("rate(untorn_stage_seconds_sum[$__rate_interval])", "{{store}} {{stage}}")],
    ),
    ("Journal that a checkpoint would free", "percentunit", [("untorn_journal_pending_bytes / untorn_journal_limit_bytes", "{{store}}")]),
    ("Commits that waited for a checkpoint, per second", "reqps", [("rate(untorn_commits_waited_total[$__rate_interval])", "{{store}}")]),
    ("Bytes written per second", "Bps", [("rate(untorn_written_bytes_total[$__rate_interval])", "{{store}}"), ("rate(untorn_journal_written_bytes_total[$__rate_interval])", "{{store}} journal")]),
    ("Memory of files with commits that are not applied yet", "bytes", [("untorn_memory_bytes", "{{store}}")]),
    ("Commits that readers hold, and bytes kept for them", "short", [("untorn_held_commits", "{{store}} held"), ("untorn_kept_bytes", "{{store}} bytes")]),
    ("Stores: open, watched, failed, files in quarantine", "short", [("untorn_open", "{{store}} open"), ("untorn_watched", "{{store}} watched"), ("untorn_failed", "{{store}} failed"), ("untorn_quarantined", "{{store}} quarantine")]),
]


def panel(n, title, unit, targets):
    return {
        "id": n + 1,
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"x": 12 * (n % 2), "y": 8 * (n // 2), "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(targets)
        ],
    }


def dashboard():
    return {
        "title": "Untorn",
        "uid": "untorn",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {"list": [{"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}]},
        "panels": [panel(n, *about) for n, about in enumerate(PANELS)],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))
