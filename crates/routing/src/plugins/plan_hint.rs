//! `plan_hint`: the pod that an offline plan put the request on.

use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::Writes;
use crate::stage::{Prepare, Preparing, Rejection};
use crate::values::PlanHint;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "plan_hint",
    summary: "The pod that an offline plan put the request on. Only internal requests carry one: \
              no header or body field of a client is looked at.",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "plan_hint",
    make: Make::Prepare(make),
};

struct FromPlan {
    hint: Writes<PlanHint>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Prepare>, AssemblyRefused> {
    Ok(Box::new(FromPlan { hint: assembly.writes() }))
}

impl Prepare for FromPlan {
    fn prepare(&self, scene: &mut Preparing<'_>) -> Result<(), Rejection> {
        if let Some(pod) = scene.request().planned {
            scene.write(&self.hint).0 = Some(pod);
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
        let mut rehearsal = Harness::of(2);
        let pod = rehearsal.fleet.pods()[1].id();
        rehearsal.request.planned = Some(pod);
        let hint: Option<PlanHint> = rehearsal.prepared(&["plan_hint"]).unwrap();
        assert_eq!(hint, Some(PlanHint(Some(pod))));
    }

    #[test]
    fn nothing_that_a_client_sends_is_a_hint() {
        let mut rehearsal = Harness::of(2);
        let body = br#"{"prompt":"p","planned":"pod-1","plan_hint":"pod-1","pod":1}"#;
        rehearsal.request = Request::from_json(body).unwrap();
        let names = ["planned", "plan-hint", "x-plan-hint", "x-wornpath-pod", "x-planned-pod"];
        rehearsal.request.headers =
            names.iter().map(|name| ((*name).into(), "pod-1".into())).collect();
        let hint: Option<PlanHint> = rehearsal.prepared(&["plan_hint"]).unwrap();
        assert_eq!(hint, None);
    }
}
