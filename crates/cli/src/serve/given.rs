//! What the command line and its variables say, for the page about the configuration in force.

use wornpath_config::EffectiveValue;

use super::arguments::ServeArguments;

/// The options that were given, each with the key of the file that it overrides. Keys of the API are
/// not shown.
pub(super) fn options(arguments: &ServeArguments) -> Vec<EffectiveValue> {
    // All of them by name: an option that is added does not compile before it is shown.
    let ServeArguments {
        config: _,
        pods,
        prefill,
        decode,
        policy,
        host,
        port,
        admin,
        epp,
        epp_health,
        one_destination,
        epp_default: _,
        api_key,
        api_key_file,
        pod_key_file,
        isolate_tenants,
        tokenizer,
        model,
        block_size,
        workers,
        first_byte_timeout,
        between_bytes_timeout,
        max_body,
        lame_duck,
        grace,
        reveal_pods,
        batches,
        // It can be changed, and is shown as it is.
        log_level: _,
        log_format,
    } = arguments;
    let mut given = Given(Vec::new());
    for (flag, urls) in [("--pod", pods), ("--prefill", prefill), ("--decode", decode)] {
        urls.iter().for_each(|url| given.add("pods", flag, Some(url)));
    }
    given.add("pods (key_file)", "--pod-key-file", pod_key_file.as_ref().map(|it| it.display()));
    given.add("profiles", "--policy", policy.as_ref());
    given.add("listen.client (address)", "--host", *host);
    given.add("listen.client (port)", "--port", *port);
    given.add("listen.admin", "--admin", *admin);
    given.add("listen.epp", "--epp", *epp);
    given.add("listen.epp.health", "--epp-health", *epp_health);
    given.add("listen.epp.destinations", "--one-destination", one_destination.then_some("one"));
    let keys = (!api_key.is_empty()).then_some("(not shown)");
    given.add("tenants", "--api-key or WORNPATH_API_KEY", keys);
    for file in api_key_file {
        given.add("tenants", "--api-key-file", Some(file.display()));
    }
    given.add("isolation", "--isolate-tenants", isolate_tenants.then_some("on"));
    given.add("models (tokenizer)", "--tokenizer", tokenizer.as_ref());
    given.add("models (name)", "--model", model.as_ref());
    given.add("models (block_size)", "--block-size", *block_size);
    given.add("workers", "--workers", *workers);
    given.add("timeouts.first_byte", "--first-byte-timeout", seconds(*first_byte_timeout));
    given.add("timeouts.between_bytes", "--between-bytes-timeout", seconds(*between_bytes_timeout));
    given.add("limits.body", "--max-body", *max_body);
    given.add("drain.lame_duck", "--lame-duck", seconds(*lame_duck));
    given.add("drain.grace", "--grace", seconds(*grace));
    given.add("reveal", "--reveal-pods", reveal_pods.then_some("pod"));
    if let Some(store) = batches {
        let key = if store.contains("://") { "batch.postgres" } else { "batch.folder" };
        let is_variable = std::env::var("WORNPATH_BATCHES").is_ok_and(|value| value == *store);
        given.0.push(if is_variable {
            EffectiveValue::environment(key, "WORNPATH_BATCHES", store)
        } else {
            EffectiveValue::option(key, "--batches", store)
        });
    }
    given.add("log_format", "--log-format", log_format.as_ref());
    given.0
}

fn seconds(given: Option<f64>) -> Option<String> {
    given.map(|seconds| format!("{seconds}s"))
}

struct Given(Vec<EffectiveValue>);

impl Given {
    fn add(&mut self, key: &str, flag: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.0.push(EffectiveValue::option(key, flag, &value.to_string()));
        }
    }
}
