"""Reloads under load: fifty signals, configurations that are refused, and one that would open the router."""

import signal
import time

from lab import attack, bearer, tenants, until
from wire import Engine


@attack("fifty reloads under load, every other one with a broken configuration")
def storm(lab):
    engines = [lab.own(Engine()) for _ in range(2)]
    base = {
        "pods": [engine.pod(name=f"pod-{number}") for number, engine in enumerate(engines)],
        "tenants": tenants("a", "b"),
    }
    router = lab.serve(base, pods=2)
    bystanders = [lab.bystander(router, bearer(name), pause=0.01) for name in ("a", "b")]
    broken = [
        "pods: [",
        "pods: [{url: ftp://x}]\n",
        "nothing: 1\n",
        "",
        "\0",
        "pods: []\ntenants: []\n",
        {**base, "profiles": {"x": {"pick": "nothing"}}},
        {**base, "isolation": {"secret_file": "/nowhere"}},
    ]
    for number in range(50):
        if number % 2:
            router.write(broken[number // 2 % len(broken)])
        else:
            pods = [engine.pod(name=f"pod-{at}-{number % 4}") for at, engine in enumerate(engines)]
            limits = {"headers": 50 + number, "body": f"{16 + number}MiB"}
            router.write({**base, "pods": pods, "limits": limits})
        router.process.signal(signal.SIGHUP)
        time.sleep(0.04)
        lab.check(router.process.is_alive(), f"reload {number} ended the router")
    router.write(base)
    until("the last configuration is in use", lambda: router.operate("POST", "/config/reload").status == 200)
    for bystander in bystanders:
        bystander.report(lab, slowest=3, least=50)
    lab.check(router.post().status == 401, "a request without a key is served after the reloads")
    lab.check(router.memory("VmRSS") < 300, f"{router.memory('VmRSS'):.0f} MiB")


@attack("a reload that removes all tenants, or the token of the admin plane")
def opening(lab):
    engine = lab.own(Engine())
    base = {"pods": [engine.pod()], "tenants": tenants("a")}
    router = lab.serve(base)
    for config in [{"pods": [engine.pod()]}, {"pods": [engine.pod()], "tenants": []}]:
        router.write(config)
        router.operate("POST", "/config/reload")
        lab.check(router.post().status == 401, f"{list(config)}: the router is open to all clients")
    router.write({**base, "tenants": tenants("c")})
    lab.check(router.operate("POST", "/config/reload").status == 200, "other tenants are refused")
    lab.check(router.post(headers=bearer("a")).status == 401, "a tenant that was removed is served")
    lab.check(router.is_serving(bearer("c")), "a tenant that was added is not served")


@attack("signals that come while the router starts or ends")
def signals(lab):
    engine = lab.own(Engine())
    for order in [[signal.SIGHUP] * 5, [signal.SIGPIPE], [signal.SIGTERM, signal.SIGHUP, signal.SIGTERM]]:
        router = lab.serve({"pods": [engine.pod()]})
        for number in order:
            if router.process.is_alive():
                router.process.signal(number)
                time.sleep(0.05)
        if signal.SIGTERM in order:
            started = time.monotonic()
            until("it ends", lambda router=router: not router.process.is_alive(), 10)
            lab.check(
                router.process.child.returncode == 0,
                f"{order} ended it with {router.process.child.returncode} after {time.monotonic() - started:.1f} s",
            )
        else:
            lab.check(router.is_serving(), f"{order}: it does not answer any more")
        router.end()
