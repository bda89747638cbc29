#!/usr/bin/env python3
"""Checks manifests against the schemas of custom resource definitions, as an API server would.

    helm template wornpath deploy/helm/wornpath --set mode=picker | tests/real-kubernetes/crds.py CRD.yaml...

The definitions are those that the projects publish, such as Gateway API's `httproutes.yaml`. Unknown fields are errors, which an
API server would drop silently. Needs the Python packages PyYAML and jsonschema. Exit status 1 if a manifest is invalid, 2 if
none of the manifests has a schema.
"""

import sys

import jsonschema
import yaml


def schemas(paths):
    """The schemas by API version and kind."""
    found = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for definition in yaml.safe_load_all(file):
                if not definition or definition["kind"] != "CustomResourceDefinition":
                    continue
                spec = definition["spec"]
                for version in spec["versions"]:
                    schema = version["schema"]["openAPIV3Schema"]
                    forbid_unknown(schema["properties"].get("spec", {}))
                    key = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
                    found[key] = schema
    return found


def forbid_unknown(schema):
    if isinstance(schema, list):
        for item in schema:
            forbid_unknown(item)
    elif isinstance(schema, dict):
        keeps_unknown = schema.get("x-kubernetes-preserve-unknown-fields")
        if "properties" in schema and "additionalProperties" not in schema and not keeps_unknown:
            schema["additionalProperties"] = False
        for item in schema.values():
            forbid_unknown(item)


def main():
    known = schemas(sys.argv[1:])
    checked = invalid = 0
    for manifest in yaml.safe_load_all(sys.stdin):
        key = manifest and (manifest["apiVersion"], manifest["kind"])
        if not manifest or key not in known:
            continue
        checked += 1
        errors = list(jsonschema.Draft202012Validator(known[key]).iter_errors(manifest))
        invalid += bool(errors)
        for error in errors:
            place = ".".join(map(str, error.absolute_path))
            print(f"invalid: {manifest['kind']} {manifest['metadata']['name']}: {place}: {error.message}")
        if not errors:
            print(f"valid: {manifest['kind']} {manifest['metadata']['name']}")
    if not checked:
        print("no manifest has one of these schemas", file=sys.stderr)
        sys.exit(2)
    sys.exit(1 if invalid else 0)


if __name__ == "__main__":
    main()
