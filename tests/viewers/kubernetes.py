"""Renders the Helm chart with Helm's own library, and validates manifests against Kubernetes' published schemas.

    kubernetes.py lint CHART                 fails unless Helm finds no fault
    kubernetes.py render CHART [VALUES]      prints the manifests; VALUES is YAML
    kubernetes.py validate FILE VERSION...   prints the kinds; fails unless all manifests are valid in all versions
"""

import sys

import helm_python
import kubernetes_validate
import yaml

# Custom resources, whose schemas are not Kubernetes'.
CUSTOM = {"PodMonitor"}
WARNING = 2


def lint(chart):
    report = helm_python.lint(chart, strict=True, kube_version="v1.31.0")
    found = [message for message in report["messages"] if message["severity"] >= WARNING]
    if found or report["errors"]:
        sys.exit(f"{found} {report['errors']}")


def render(chart, values=""):
    with helm_python.Chart.load(chart) as loaded:
        rendered = loaded.render(yaml.safe_load(values) or {}, name="heapbpf", namespace="heapbpf")
    for path in sorted(rendered):
        if rendered[path].strip() and path.endswith(".yaml"):
            lines = [line.rstrip() for line in rendered[path].strip().splitlines()]
            print("\n".join(["---", *lines]))


def validate(path, *versions):
    with open(path, encoding="utf-8") as file:
        manifests = [manifest for manifest in yaml.safe_load_all(file) if manifest]
    for manifest in manifests:
        for version in versions:
            if manifest["kind"] not in CUSTOM:
                kubernetes_validate.validate(manifest, version, strict=True)
    print(" ".join(manifest["kind"] for manifest in manifests))


{"lint": lint, "render": render, "validate": validate}[sys.argv[1]](*sys.argv[2:])
