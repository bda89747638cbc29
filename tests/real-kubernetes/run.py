"""Does the router follow what a real API server says? See README.md."""

import argparse
import json
import os
import pathlib
import re
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

TLS = ssl._create_unverified_context()
ADMIN, ROUTER = "token-of-the-admin", "token-of-the-router"
PODS = "/api/v1/namespaces/models/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools"
UP = ["vllm-0 up", "vllm-1 up", "vllm-2 up"]
# What the router promises.
SOON = 1.0


def say(*words):
    print(time.strftime("%H:%M:%S", time.gmtime()), *words, flush=True)


def until(what, is_true, limit=120.0):
    """Seconds until something is true."""
    start = time.monotonic()
    while True:
        try:
            if is_true():
                return time.monotonic() - start
        except (OSError, ValueError):
            pass
        if time.monotonic() - start > limit:
            sys.exit(f"not within {limit} s: {what}")
        time.sleep(0.002)


class Cluster:
    """etcd and an API server, without anything else of Kubernetes."""

    def __init__(self, folder, etcd, apiserver, ports):
        self.folder, self.etcd, self.apiserver = folder, etcd, apiserver
        self.etcd_port, self.peer_port, self.port = ports
        self.processes = {}
        key = folder / "service-accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        tokens = f'{ADMIN},admin,1,"system:masters"\n{ROUTER},router,2\n'
        (folder / "tokens.csv").write_text(tokens)

    def spawn(self, name, command):
        log = open(self.folder / f"{name}.log", "ab")
        self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def start_etcd(self):
        at, peer = (f"http://127.0.0.1:{port}" for port in (self.etcd_port, self.peer_port))
        self.spawn("etcd", [
            self.etcd, "--data-dir", self.folder / "etcd", "--listen-client-urls", at,
            "--advertise-client-urls", at, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        ])

    def start(self):
        """Starts the API server, and waits until it is ready."""
        key = self.folder / "service-accounts.key"
        self.spawn("apiserver", [
            self.apiserver, "--etcd-servers", f"http://127.0.0.1:{self.etcd_port}",
            "--bind-address", "127.0.0.1", "--secure-port", str(self.port),
            # No other server connects to it; a loopback address is refused here.
            "--advertise-address", "10.255.255.254", "--endpoint-reconciler-type", "none",
            "--cert-dir", self.folder / "certificates", "--service-account-key-file", key,
            "--service-account-signing-key-file", key,
            "--service-account-issuer", "https://127.0.0.1",
            "--token-auth-file", self.folder / "tokens.csv", "--authorization-mode", "RBAC",
            "--disable-admission-plugins", "ServiceAccount",
            "--service-cluster-ip-range", "10.0.0.0/24",
        ])
        return until("the API server is ready", lambda: self.open("GET", "/readyz").read() == b"ok")

    def kill(self):
        self.processes["apiserver"].kill()
        self.processes["apiserver"].wait()

    def end(self):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def open(self, method, path, body=None, kind="application/json"):
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {ADMIN}", "content-type": kind}
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}{path}", data, headers, method=method)
        return urllib.request.urlopen(request, context=TLS, timeout=20)

    def call(self, method, path, body=None, kind="application/json"):
        with self.open(method, path, body, kind) as answer:
            return json.load(answer)

    def patch(self, path, body):
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def compact(self):
        """Forgets the history, so that watches of old versions get 410."""
        def etcd(path, body):
            data = json.dumps(body).encode()
            url = f"http://127.0.0.1:{self.etcd_port}/v3/kv/{path}"
            return json.load(urllib.request.urlopen(url, data, timeout=20))
        revision = etcd("range", {"key": "AA==", "limit": 1})["header"]["revision"]
        etcd("compaction", {"revision": revision, "physical": True})
        return revision


class Engines:
    """Simulated engines, each of which a pod stands for."""

    def __init__(self, wornpath):
        self.process = subprocess.Popen(
            [wornpath, "engine", "--port", "0", "--speed", "100", "--engines", "3", "--model", "m"],
            stdout=subprocess.PIPE, text=True)
        self.ports = []
        while len(self.ports) < 3:
            found = re.findall(r"//[0-9.]+:(\d+)", self.process.stdout.readline())
            if len(found) == 3:
                self.ports.append(found)

    def pod(self, number):
        http, events, replay = self.ports[number]
        annotations = {"wornpath/port": http, "wornpath/events": f"zmq://{{host}}:{events}?replay={replay}"}
        spec = {
            "nodeName": "node-7", "terminationGracePeriodSeconds": 60,
            "automountServiceAccountToken": False,
            "containers": [{"name": "vllm", "image": "vllm"}],
        }
        metadata = {"name": f"vllm-{number}", "labels": {"app": "vllm"}, "annotations": annotations}
        return {"metadata": metadata, "spec": spec}


class Router:
    """A router with a configuration, and what it says of its pods."""

    def __init__(self, wornpath, path):
        self.log = path.with_suffix(".log")
        command = [wornpath, "serve", "--port", "0", "--reveal-pods", "-c", path, "--admin", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=open(self.log, "w"), text=True)
        self.client, self.admin = (
            self.process.stdout.readline().split("://")[1].strip() for _ in range(2))

    def pods(self):
        page = json.load(urllib.request.urlopen(f"http://{self.admin}/pods", timeout=5))
        def line(pod):
            name, _, port = pod["name"].partition(":")
            return " ".join([name.split(".")[0] + (f":{port}" if port else ""), pod["health"]])
        return sorted(line(pod) for pod in page["pods"])

    def ask(self):
        """The pod that a prompt goes to."""
        body = {"model": "m", "prompt": "a prefix that one pod holds " * 40, "max_tokens": 1}
        request = urllib.request.Request(
            f"http://{self.client}/v1/completions", json.dumps(body).encode(),
            {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.headers["x-wornpath-pod"]

    def step(self, what, act, expected, limit=SOON):
        """Lets the API server change something, and measures when the router has followed."""
        act()
        taken = until(f"{what}: {expected}", lambda: self.pods() == sorted(expected))
        say(f"{what}: {taken:.3f} s after the API server's answer")
        if taken > limit:
            sys.exit(f"{what}: later than {limit} s")


def main():
    options = argparse.ArgumentParser(description=__doc__)
    for name in ("etcd", "apiserver", "wornpath"):
        options.add_argument(f"--{name}", required=True)
    options.add_argument("--away", type=float, default=600.0, help="seconds without an API server")
    options.add_argument("--ports", type=int, nargs=3, default=[23790, 23800, 26443])
    options = options.parse_args()
    paths = {name: os.path.abspath(getattr(options, name)) if os.sep in getattr(options, name) else getattr(options, name)
             for name in ("etcd", "apiserver", "wornpath")}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        cluster = Cluster(folder, paths["etcd"], paths["apiserver"], options.ports)
        started = []
        try:
            run(folder, cluster, paths["wornpath"], options.away, started)
        finally:
            for one in started:
                one.process.kill()
                one.process.wait()
            cluster.end()


def configure(folder, port):
    (folder / "kubeconfig").write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": {
            "server": f"https://127.0.0.1:{port}",
            "certificate-authority": str(folder / "certificates" / "apiserver.crt")}}],
        "users": [{"name": "it", "user": {"token": ROUTER}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": "models"}}],
    }))
    (folder / "selector.yaml").write_text(
        "models: [{name: m, tokenizer: bytes, block_size: 16}]\ndiscovery:\n"
        "  - {kubernetes: {selector: app=vllm, kubeconfig: kubeconfig}, model: m, engine: vllm}\n")
    (folder / "pool.yaml").write_text("discovery:\n  - kubernetes: {pool: llama, kubeconfig: kubeconfig}\n")


def check(wornpath, folder, name):
    done = subprocess.run(
        [wornpath, "check", "--kubernetes", folder / name], capture_output=True, text=True)
    return done.returncode, done.stdout.replace(str(folder), ".").strip()


def run(folder, cluster, wornpath, away, started):
    cluster.start_etcd()
    say(f"API server ready after {cluster.start():.1f} s")
    version = cluster.call("GET", "/version")
    say("version", version["gitVersion"], version["goVersion"])
    cluster.call("POST", "/api/v1/namespaces", {"metadata": {"name": "models"}})
    cluster.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", pool_definition())
    engines = Engines(wornpath)
    started.append(engines)

    def ready(number, value="True"):
        address = {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
        conditions = [{"type": "Ready", "status": value}]
        status = {"phase": "Running", "conditions": conditions, **address}
        return cluster.patch(f"{PODS}/vllm-{number}/status", {"status": status})

    def create(number):
        cluster.call("POST", PODS, engines.pod(number))
        ready(number)

    def delete(number, seconds):
        cluster.call("DELETE", f"{PODS}/vllm-{number}", {"gracePeriodSeconds": seconds})

    def change(number, **metadata):
        cluster.patch(f"{PODS}/vllm-{number}", {"metadata": metadata})

    for number in range(3):
        create(number)
    configure(folder, cluster.port)
    check_rights(cluster, wornpath, folder)

    router = Router(wornpath, folder / "selector.yaml")
    started.append(router)
    say(f"three pods up: {until('three pods', lambda: router.pods() == UP):.2f} s after the start")
    draining = ["vllm-0 up", "vllm-1 draining", "vllm-2 up"]
    without = ["vllm-0 up", "vllm-2 up"]
    router.step("not ready", lambda: ready(1, "False"), draining)
    router.step("ready", lambda: ready(1), UP)
    router.step("marked", lambda: change(1, annotations={"wornpath/drain": "true"}), draining)
    router.step("unmarked", lambda: change(1, annotations={"wornpath/drain": None}), UP)
    router.step("deleted with 60 s", lambda: delete(1, 60), draining)
    router.step("deleted at once", lambda: delete(1, 0), without)
    router.step("created and ready", lambda: create(1), UP)
    router.step("label lost", lambda: change(1, labels={"app": "other"}), without)
    router.step("label back", lambda: change(1, labels={"app": "vllm"}), UP)

    holder = router.ask()
    until("its cache is known", lambda: router.ask() == holder)
    cluster.kill()
    until("the router notices", lambda: "Kubernetes API failed" in router.log.read_text())
    assert router.pods() == UP and router.ask() == holder
    cluster.start()
    gone = ["vllm-0 up", "vllm-1 up", "vllm-2 draining"]
    router.step("not ready, after a restart of the API server", lambda: ready(2, "False"), gone, 6)
    router.step("ready again", lambda: ready(2), UP)

    cluster.kill()
    start, looks = time.monotonic(), 0
    while time.monotonic() - start < away:
        assert router.pods() == UP, router.pods()
        assert router.ask() == holder, "the cache is still known"
        looks += 1
        time.sleep(0.5)
    say(f"no API server for {time.monotonic() - start:.0f} s: at each of {looks} looks all three pods "
        "were up, and a request went to the pod that holds its prefix")
    cluster.start()
    # The router tries again at most every five seconds.
    router.step("deleted right after", lambda: delete(2, 0), ["vllm-0 up", "vllm-1 up"], 6)
    router.step("created and ready", lambda: create(2), UP)

    cluster.kill()
    say("etcd compacted at revision", cluster.compact())
    cluster.start()
    router.step("deleted after the compaction", lambda: delete(2, 0), ["vllm-0 up", "vllm-1 up"], 6)
    show_server(cluster)
    follow_pool(cluster, wornpath, folder, engines, started, change, delete)
    say("done")


def check_rights(cluster, wornpath, folder):
    for name in ("selector.yaml", "pool.yaml"):
        status, text = check(wornpath, folder, name)
        say(f"check without rights: exit {status}\n{text}")
        assert status == 1 and "may not list pods" in text and "may not watch pods" in text
    rights = "/apis/rbac.authorization.k8s.io/v1/namespaces/models"
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": ["inference.networking.k8s.io"], "resources": ["inferencepools"],
         "resourceNames": ["llama"], "verbs": ["list", "watch"]},
    ]
    cluster.call("POST", f"{rights}/roles", {"metadata": {"name": "wornpath"}, "rules": rules})
    cluster.call("POST", f"{rights}/rolebindings", {
        "metadata": {"name": "wornpath"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "wornpath"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "router"}],
    })
    until("the rights are in force", lambda: check(wornpath, folder, "selector.yaml")[0] == 0)
    say("check with the rights that it named:", check(wornpath, folder, "selector.yaml")[1])
    status, text = check(wornpath, folder, "pool.yaml")
    say(f"check without the pool: exit {status}\n{text}")
    assert status == 1 and "no InferencePool `llama`" in text


def show_server(cluster):
    """What the API server itself answers, for comparison with the one of the tests."""
    try:
        with cluster.open("GET", f"{PODS}?watch=1&resourceVersion=2&timeoutSeconds=2") as answer:
            say("a watch of a compacted version:", answer.status, answer.read(200))
    except urllib.error.HTTPError as error:
        say("a watch of a compacted version:", error.code, error.read(200))
    version = cluster.call("GET", PODS)["metadata"]["resourceVersion"]
    watch = f"{PODS}?watch=1&allowWatchBookmarks=true&timeoutSeconds=5&resourceVersion={version}"
    with cluster.open("GET", watch) as answer:
        lines = answer.read().splitlines()
    kinds = [json.loads(line)["type"] for line in lines]
    say("events of a watch of 5 s:", kinds)
    page = cluster.call("GET", f"{PODS}?limit=1")["metadata"]
    say("a page of one pod has:", sorted(page))


def pool_definition():
    schema = {"type": "object", "properties": {
        "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}
    names = {"plural": "inferencepools", "singular": "inferencepool", "kind": "InferencePool",
             "listKind": "InferencePoolList"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "inferencepools.inference.networking.k8s.io",
                     "annotations": {"api-approved.kubernetes.io": "https://example.com"}},
        "spec": {"group": "inference.networking.k8s.io", "scope": "Namespaced", "names": names,
                 "versions": [version]},
    }


def follow_pool(cluster, wornpath, folder, engines, started, change, delete):
    router = Router(wornpath, folder / "pool.yaml")
    started.append(router)
    change(0, annotations={"wornpath/port": None, "wornpath/events": None})
    delete(1, 0)
    ports = [int(http) for http, _, _ in engines.ports[:2]]
    pool = {
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": {"name": "llama"},
        "spec": {"selector": {"matchLabels": {"app": "vllm"}},
                 "targetPorts": [{"number": port} for port in ports],
                 "endpointPickerRef": {"name": "wornpath", "port": {"number": 9002},
                                       "failureMode": "FailOpen"}},
    }
    router.step("pool with two ports", lambda: cluster.call("POST", POOLS, pool),
                [f"vllm-0:{port} up" for port in ports], 6)
    one_port = {"spec": {"targetPorts": [{"number": ports[0]}]}}
    router.step("pool with one port", lambda: cluster.patch(f"{POOLS}/llama", one_port), ["vllm-0 up"])
    say("check of the pool:", check(wornpath, folder, "pool.yaml")[1])
    router.step("pool deleted", lambda: cluster.call("DELETE", f"{POOLS}/llama"), [])
    read = [line for line in router.log.read_text().splitlines() if "InferencePool read" in line]
    say("the router's log:", *(line.split("InferencePool read")[1].strip() for line in read))


if __name__ == "__main__":
    main()
