//! `plan_hint`: the pod that an offline plan assigned to the request.
//!
//! The hint comes from the batch planner inside the router. Clients cannot set it, so they cannot
//! choose their pod.

use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::{PlanHint, Writes};
use crate::stage::{Prepare, Preparing, Rejection};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "plan_hint",
    summary: "The pod that an offline plan assigned to the request. Only internal requests have one: headers and body \
              fields of clients are ignored.",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "plan_hint",
    make: Make::Prepare(make),
};

struct CopyPlanHint {
    hint: Writes<PlanHint>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Prepare>, AssemblyRefused> {
    Ok(Box::new(CopyPlanHint { hint: assembly.writes() }))
}

impl Prepare for CopyPlanHint {
    fn prepare(&self, preparing: &mut Preparing<'_>) -> Result<(), Rejection> {
        if let Some(pod) = preparing.request().planned {
            preparing.write(&self.hint).0 = Some(pod);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::harness::Harness;
    use crate::request::Request;

    #[test]
    fn the_hint_is_the_planned_pod() {
        let mut harness = Harness::of(2);
        let pod = harness.fleet.pods()[1].id();
        harness.request.planned = Some(pod);
        let hint: Option<PlanHint> = harness.prepared(&["plan_hint"]).unwrap();
        assert_eq!(hint, Some(PlanHint(Some(pod))));
    }

    #[test]
    fn no_header_or_field_of_a_client_is_a_hint() {
        let mut harness = Harness::of(2);
        let body = br#"{"prompt":"p","planned":"pod-1","plan_hint":"pod-1","pod":1}"#;
        harness.request = Request::from_json(body).unwrap();
        let names = ["planned", "plan-hint", "x-plan-hint", "x-wornpath-pod", "x-planned-pod"];
        harness.request.headers =
            names.iter().map(|name| ((*name).into(), "pod-1".into())).collect();
        let hint: Option<PlanHint> = harness.prepared(&["plan_hint"]).unwrap();
        assert_eq!(hint, None);
    }
}
