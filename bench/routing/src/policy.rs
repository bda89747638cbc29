//! The policies: the default profile, and those of other routers as profiles.

/// A routing profile under test.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) name: String,
    pub(crate) yaml: String,
}

macro_rules! profile {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../profiles/", $name, ".yaml")))
    };
}

macro_rules! peer {
    ($name:literal) => {
        ($name, include_str!(concat!("../peers/", $name, ".yaml")))
    };
}

/// Peers that lose everywhere by a wide margin, left out of a quick run.
const SLOW: [&str; 3] = ["round-robin", "p2c", "least-load"];

/// The two numbers of `llm-d-sticky` that depend on the engine: its lead in tokens, and
/// milliseconds per prompt token.
const LEAD: (&str, &str) = ("878_000", "0.01594");

/// The default profile.
pub(crate) fn ours() -> Policy {
    let (name, yaml) = profile!("cache-aware");
    Policy { name: name.to_owned(), yaml: yaml.to_owned() }
}

/// The policies of other routers.
pub(crate) fn peers() -> Vec<Policy> {
    let all = [
        profile!("round-robin"),
        profile!("least-load"),
        peer!("p2c"),
        profile!("sticky-least-loaded"),
        profile!("sglang"),
        profile!("llm-d"),
        profile!("llm-d-sticky"),
        profile!("dynamo"),
        profile!("min-ttft"),
        profile!("lmetric"),
        peer!("miss-x2"),
        peer!("preble"),
    ];
    all.map(|(name, yaml)| Policy { name: name.to_owned(), yaml: yaml.to_owned() }).to_vec()
}

/// Gives every policy the wait queue of the first, which is ours.
pub(crate) fn share_queue(policies: &mut [Policy]) {
    let Some((ours, peers)) = policies.split_first_mut() else { return };
    let mut lines = ours.yaml.lines().skip_while(|line| !line.starts_with("hold:"));
    let mut queue: Vec<_> = lines.next().into_iter().collect();
    queue.extend(lines.take_while(|line| line.starts_with(' ')));
    for peer in peers {
        peer.yaml = format!("{}\n{}\n", peer.yaml.trim_end(), queue.join("\n"));
    }
}

impl Policy {
    pub(crate) fn is_slow(&self) -> bool {
        SLOW.contains(&self.name.as_str())
    }

    /// The profile for an engine whose prompt tokens take `token_ms` milliseconds.
    pub(crate) fn yaml_for(&self, token_ms: f64) -> String {
        let lead = format!("{:.0}", 14_000.0 / token_ms);
        self.yaml.replace(LEAD.0, &lead).replace(LEAD.1, &token_ms.to_string())
    }
}
