//! What one finder has found so far, and what changes when it looks again.
//!
//! A finder owns the pods it brought, and only those: a pod of the configuration or of the admin plane is
//! never touched by it. A look that fails changes nothing. A pod that is missing once may be missing by
//! chance, since resolvers leave records out now and then; one that is missing twice has gone.

use crate::config::PodConfig;

/// Looks in a row that a pod must be missing from.
const GONE_AFTER: u32 = 2;

/// The pods of one finder.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pods: Vec<(PodConfig, u32)>,
}

/// What is to be done with a pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// It came.
    Add(PodConfig),
    /// It is known otherwise than before.
    Replace(PodConfig),
    /// It has gone.
    Remove(PodConfig),
}

/// How sure a finder is that what it does not see is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    /// What is missing has gone: a file was written as it is.
    Sharp,
    /// What is missing may be there all the same: a name server's answer.
    Blurred,
}

impl Found {
    /// What changes now that exactly `seen` are there.
    pub fn look(&mut self, seen: &[PodConfig], sight: Sight) -> Vec<Change> {
        let mut changes = Vec::new();
        let patience = if sight == Sight::Sharp { 1 } else { GONE_AFTER };
        self.pods.retain_mut(|(known, missing)| {
            match seen.iter().find(|pod| pod.name == known.name) {
                Some(pod) => {
                    *missing = 0;
                    if pod != known {
                        known.clone_from(pod);
                        changes.push(Change::Replace(pod.clone()));
                    }
                }
                None => *missing += 1,
            }
            let stays = *missing < patience;
            if !stays {
                changes.push(Change::Remove(known.clone()));
            }
            stays
        });
        for pod in seen {
            if self.pods.iter().all(|(known, _)| known.name != pod.name) {
                self.pods.push((pod.clone(), 0));
                changes.push(Change::Add(pod.clone()));
            }
        }
        changes
    }

    /// The pods that are there.
    pub fn pods(&self) -> impl Iterator<Item = &PodConfig> {
        self.pods.iter().map(|(pod, _)| pod)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(names: &[&str]) -> Vec<PodConfig> {
        let pod = |name: &&str| PodConfig::default().at((*name).into(), format!("http://{name}:1"));
        names.iter().map(pod).collect()
    }

    fn said(changes: &[Change]) -> Vec<String> {
        let say = |change: &Change| match change {
            Change::Add(pod) => format!("+{}", pod.name),
            Change::Replace(pod) => format!("~{}", pod.name),
            Change::Remove(pod) => format!("-{}", pod.name),
        };
        changes.iter().map(say).collect()
    }

    #[test]
    fn pods_come_and_go_with_a_file_at_once() {
        let mut found = Found::default();
        assert_eq!(said(&found.look(&pods(&["a", "b"]), Sight::Sharp)), ["+a", "+b"]);
        assert_eq!(said(&found.look(&pods(&["b", "c"]), Sight::Sharp)), ["-a", "+c"]);
        assert_eq!(said(&found.look(&pods(&["b", "c"]), Sight::Sharp)), Vec::<String>::new());
        let mut labelled = pods(&["b", "c"]);
        labelled[0].labels.push(("x".into(), "y".into()));
        assert_eq!(said(&found.look(&labelled, Sight::Sharp)), ["~b"]);
    }

    #[test]
    fn a_record_that_is_left_out_once_removes_nobody() {
        let mut found = Found::default();
        found.look(&pods(&["a", "b"]), Sight::Blurred);
        assert_eq!(said(&found.look(&pods(&["a"]), Sight::Blurred)), Vec::<String>::new());
        assert_eq!(said(&found.look(&pods(&["a", "b"]), Sight::Blurred)), Vec::<String>::new());
        found.look(&pods(&["a"]), Sight::Blurred);
        assert_eq!(said(&found.look(&pods(&["a"]), Sight::Blurred)), ["-b"]);
        assert_eq!(found.pods().count(), 1);
    }
}
