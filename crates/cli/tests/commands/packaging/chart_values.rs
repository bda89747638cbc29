//! Values of the chart for what is around the routers: proxies, engines and who may call them.

use super::kubernetes::{Rendered, at, with_helm};
use serde_json::{Value, json};

const PICKER: &str = "mode=picker";

/// What the configuration says of the picker's listener.
fn epp(rendered: &Rendered) -> Value {
    at(&rendered.config(), "/listen/epp").clone()
}

/// The application protocol of the picker's port.
fn app_protocol(rendered: &Rendered) -> String {
    let port = at(rendered.router("Service"), "/spec/ports/1");
    assert_eq!(port["targetPort"], "epp");
    port["appProtocol"].as_str().unwrap().to_owned()
}

#[test]
fn the_picker_speaks_tls_without_a_secret_unless_the_values_say_otherwise() {
    with_helm(|| {
        let rendered = Rendered::of(&[PICKER]);
        assert_eq!(epp(&rendered)["tls"], "self_signed");
        assert_eq!(app_protocol(&rendered), "http2");
        let plain = Rendered::of(&[PICKER, "picker.tls.kind=none"]);
        assert_eq!(epp(&plain).get("tls"), None);
        assert_eq!(app_protocol(&plain), "kubernetes.io/h2c");
        let own = Rendered::of(&[PICKER, "picker.tls.kind=secret", "picker.tls.secret=front"]);
        let mounts = at(own.container(), "/volumeMounts").as_array().unwrap();
        let mount = mounts.iter().find(|mount| mount["name"] == "picker-tls").unwrap();
        let folder = mount["mountPath"].as_str().unwrap();
        let expected =
            json!({"certificate": format!("{folder}/tls.crt"), "key": format!("{folder}/tls.key")});
        assert_eq!(epp(&own)["tls"], expected);
        let volumes = at(own.router("Deployment"), "/spec/template/spec/volumes").as_array();
        let volumes = volumes.unwrap();
        let volume = volumes.iter().find(|volume| volume["name"] == "picker-tls").unwrap();
        assert_eq!(at(volume, "/secret/secretName"), "front");
        let gateway = Rendered::of(&["picker.tls.kind=secret", "picker.tls.secret=front"]);
        assert!(!gateway.config_text().contains("epp"), "the gateway has no picker");
    });
}

#[test]
fn the_pool_says_what_proxies_do_without_a_router_and_the_routers_how_many_pods_they_name() {
    with_helm(|| {
        let mode = |rendered: &Rendered| {
            let [pool] = rendered.all("InferencePool")[..] else { panic!("not one pool") };
            at(pool, "/spec/endpointPickerRef/failureMode").clone()
        };
        let rendered = Rendered::of(&[PICKER]);
        assert_eq!(
            (mode(&rendered), &epp(&rendered)["destinations"]),
            ("FailClose".into(), &json!("one"))
        );
        let values = [PICKER, "picker.failureMode=FailOpen", "picker.destinations=list"];
        let rendered = Rendered::of(&values);
        assert_eq!(
            (mode(&rendered), &epp(&rendered)["destinations"]),
            ("FailOpen".into(), &json!("list"))
        );
    });
}

#[test]
fn engines_that_exist_already_are_neither_shut_off_nor_budgeted() {
    with_helm(|| {
        let of_routers = |rendered: &Rendered, kind: &str| {
            let names = rendered.all(kind).into_iter().map(|it| it["metadata"]["name"].clone());
            names.collect::<Vec<_>>()
        };
        let values =
            ["modelDefaults.engines.create=false", "modelDefaults.engines.selector.app=vllm"];
        for mode in ["mode=gateway", PICKER] {
            let rendered = Rendered::of(&[&values[..], &[mode]].concat());
            for kind in ["NetworkPolicy", "PodDisruptionBudget", "Deployment"] {
                assert_eq!(of_routers(&rendered, kind), ["test-wornpath"], "{mode} {kind}");
            }
        }
    });
}

#[test]
fn one_engine_of_a_model_may_be_missing_while_nodes_are_drained() {
    with_helm(|| {
        let rendered = Rendered::of(&[]);
        let name = &rendered.engines()["metadata"]["name"];
        let budgets = rendered.all("PodDisruptionBudget");
        let budget = budgets.iter().find(|it| it["metadata"]["name"] == *name).unwrap();
        assert_eq!(at(budget, "/spec/maxUnavailable"), 1);
        let labels = at(rendered.engines(), "/spec/template/metadata/labels");
        assert_eq!(at(budget, "/spec/selector/matchLabels"), labels);
    });
}

#[test]
fn callers_that_are_named_reach_the_engines_port_and_not_their_events() {
    with_helm(|| {
        let caller = "networkPolicy.engineCallers[0].namespaceSelector.matchLabels.name=monitoring";
        let rendered = Rendered::of(&[caller]);
        let name = &rendered.engines()["metadata"]["name"];
        let policies = rendered.all("NetworkPolicy");
        let policy = policies.iter().find(|it| it["metadata"]["name"] == *name).unwrap();
        let rules = at(policy, "/spec/ingress").as_array().unwrap();
        let ports = |rule: &Value| -> Vec<i64> {
            let ports = rule["ports"].as_array().unwrap();
            ports.iter().map(|port| port["port"].as_i64().unwrap()).collect()
        };
        assert_eq!(rules.len(), 2);
        assert_eq!(ports(&rules[0]), [8000, 5557, 5657], "the routers");
        let from = json!([{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]);
        assert_eq!((&rules[1]["from"], ports(&rules[1])), (&from, vec![8000]));
    });
}

/// The rules of the NetworkPolicy of this name, each with its callers and its ports.
fn rules(rendered: &Rendered, name: &str) -> Vec<(Value, Vec<i64>)> {
    let policies = rendered.all("NetworkPolicy");
    let policy = policies.iter().find(|it| it["metadata"]["name"] == name).unwrap();
    let rules = at(policy, "/spec/ingress").as_array().unwrap().iter();
    let ports = |rule: &Value| {
        let ports = rule["ports"].as_array().unwrap().iter();
        ports.map(|port| port["port"].as_i64().unwrap()).collect()
    };
    rules.map(|rule| (rule["from"].clone(), ports(rule))).collect()
}

#[test]
fn only_the_proxy_that_is_named_reaches_the_engines_and_the_picker() {
    with_helm(|| {
        let engines = "test-wornpath-qwen3-8b";
        let proxy = "networkPolicy.proxy[0].namespaceSelector.matchLabels.name=gateways";
        let from_proxy = json!([{"namespaceSelector": {"matchLabels": {"name": "gateways"}}}]);
        let open = Rendered::of(&[PICKER]);
        assert_eq!(rules(&open, engines)[1], (Value::Null, vec![8000]));
        let of_routers = [(Value::Null, vec![9002]), (Value::Null, vec![8080])];
        assert_eq!(rules(&open, "test-wornpath"), of_routers);
        let closed = Rendered::of(&[PICKER, proxy]);
        assert_eq!(rules(&closed, engines)[1], (from_proxy.clone(), vec![8000]));
        assert_eq!(rules(&closed, "test-wornpath"), [(from_proxy.clone(), vec![9002])]);
        let caller = "networkPolicy.routerCallers[0].podSelector.matchLabels.app=prometheus";
        let scraped = Rendered::of(&[PICKER, proxy, caller]);
        let prometheus = json!([{"podSelector": {"matchLabels": {"app": "prometheus"}}}]);
        let expected = [(from_proxy, vec![9002]), (prometheus, vec![8080])];
        assert_eq!(rules(&scraped, "test-wornpath"), expected);
        let gateway = Rendered::of(&[proxy]);
        assert_eq!(rules(&gateway, "test-wornpath"), [(Value::Null, vec![8080])], "clients");
        assert_eq!(rules(&gateway, engines).len(), 1, "the proxy is no caller of engines");
    });
}

#[test]
fn engines_are_removed_only_after_the_cooldown_by_either_autoscaler() {
    with_helm(|| {
        let cooldown = "modelDefaults.autoscaling.cooldown=77";
        let keda = Rendered::of(&["modelDefaults.autoscaling.kind=keda", cooldown]);
        let [object] = keda.all("ScaledObject")[..] else { panic!("not one") };
        let path = "/spec/advanced/horizontalPodAutoscalerConfig/behavior/scaleDown";
        assert_eq!(at(object, path), &json!({"stabilizationWindowSeconds": 77}));
        assert_eq!(at(object, "/spec/cooldownPeriod"), 77, "the step to zero");
        let hpa = Rendered::of(&["modelDefaults.autoscaling.kind=hpa", cooldown]);
        let [scaler] = hpa.all("HorizontalPodAutoscaler")[..] else { panic!("not one") };
        let expected = json!({"stabilizationWindowSeconds": 77});
        assert_eq!(at(scaler, "/spec/behavior/scaleDown"), &expected);
    });
}

#[test]
fn engines_that_exist_already_say_their_block_size_unless_the_values_do() {
    with_helm(|| {
        let size =
            |values: &[&str]| Rendered::of(values).config()["models"][0].get("block_size").cloned();
        let exist =
            ["modelDefaults.engines.create=false", "modelDefaults.engines.selector.app=vllm"];
        let given = "modelDefaults.blockSize=32";
        assert_eq!(size(&[]), Some(json!(16)));
        assert_eq!(size(&[given]), Some(json!(32)));
        assert_eq!(size(&exist), None);
        assert_eq!(size(&[exist[0], exist[1], given]), Some(json!(32)));
    });
}

/// The commands of the page, with values in place of its placeholders.
#[test]
fn the_values_for_engines_of_llm_d_name_their_model() {
    with_helm(|| {
        let page = super::read("docs/getting-started/llm-d.md");
        let install = page.split("helm install").nth(1).unwrap().split("```").next().unwrap();
        let install = install.split("\nkubectl").next().unwrap();
        let words: Vec<_> = install.split_whitespace().collect();
        let mut values = vec!["@examples/kubernetes-vllm/picker.yaml".to_owned()];
        for pair in words.windows(2).filter(|pair| pair[0] == "--set") {
            let value = pair[1].replace("\\\\", "\\").replace("MODEL", "org/llama");
            values.push(value.replace("LABEL", "llama").replace("NAME", "llama"));
        }
        let values: Vec<_> = values.iter().map(String::as_str).collect();
        let config = Rendered::of(&values).config();
        assert_eq!(at(&config, "/models/0/name"), "org/llama");
        assert_eq!(at(&config, "/discovery/0/model"), "org/llama");
        assert_eq!(config["models"][0].get("block_size"), None);
    });
}
